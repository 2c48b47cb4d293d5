//! Addresses: ClusterIPs from the Service range, Pod addresses from each node's range.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use crate::config::Ipv4Cidr;
use crate::engine::rng::below;
use crate::ids::PodId;

/// Hands out ClusterIPs as the API server's bitmap allocator does: an explicit address if it is
/// free, else a random start in the upper band and a linear scan with wrap, then the lower band.
#[derive(Debug)]
pub struct ClusterIps {
    range: Ipv4Cidr,
    taken: BTreeSet<u64>,
}

/// Why a ClusterIP could not be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The address is another Service's.
    #[error("failed to allocate IP {0}: provided IP is already allocated")]
    Taken(Ipv4Addr),
    /// The address is not in the range.
    #[error(
        "the provided IP ({addr}) is not in the valid range; the range of valid IPs is {range}"
    )]
    OutOfRange {
        /// The address.
        addr: Ipv4Addr,
        /// The Service range.
        range: Ipv4Cidr,
    },
    /// No address is left.
    #[error("failed to allocate a serviceIP: range is full")]
    Full,
}

impl ClusterIps {
    /// Returns an allocator for `range` in which only the first address is taken, by the Service
    /// `default/kubernetes`.
    pub fn new(range: Ipv4Cidr) -> ClusterIps {
        ClusterIps { range, taken: BTreeSet::from([0]) }
    }

    /// Takes `addr`.
    pub fn allocate(&mut self, addr: Ipv4Addr) -> Result<(), AllocateError> {
        let out_of_range = AllocateError::OutOfRange { addr, range: self.range };
        if !self.range.contains(addr) {
            return Err(out_of_range);
        }
        let from_base = u64::from(u32::from(addr) - u32::from(self.range.base()));
        // Offset 0 is the address after the network address; the broadcast address is not usable.
        let offset = from_base.checked_sub(1).filter(|&offset| offset < self.usable());
        let offset = offset.ok_or(out_of_range)?;
        if self.taken.insert(offset) { Ok(()) } else { Err(AllocateError::Taken(addr)) }
    }

    /// Takes a free address, starting from a place chosen by `draw`.
    pub fn allocate_next(&mut self, draw: u64) -> Result<Ipv4Addr, AllocateError> {
        let (band, usable) = (self.static_band(), self.usable());
        let offset = self
            .first_free(band, usable, draw)
            .or_else(|| self.first_free(0, band, draw))
            .ok_or(AllocateError::Full)?;
        self.taken.insert(offset);
        Ok(self.range.address(offset + 1).expect("a usable offset is in the range"))
    }

    fn usable(&self) -> u64 {
        self.range.size().saturating_sub(2)
    }

    /// Kubernetes: KEP-3070.
    fn static_band(&self) -> u64 {
        let size = self.range.size();
        if size <= 16 { 0 } else { (size / 16).clamp(16, 256).min(self.usable()) }
    }

    fn first_free(&self, from: u64, to: u64, draw: u64) -> Option<u64> {
        if from >= to {
            return None;
        }
        let start = from + below(draw, to - from);
        (start..to).chain(from..start).find(|offset| !self.taken.contains(offset))
    }
}

/// The addresses of one node's Pods.
///
/// Workload Pods get them as the `host-local` plugin does: the next free one after the last that
/// was handed out. Client Pods take theirs from the top, so that adding a client moves nobody's
/// address.
#[derive(Debug)]
pub struct PodAddresses {
    range: Ipv4Cidr,
    last: u32,
    /// Sorted by offset.
    owners: Vec<(u32, PodId)>,
    /// Who had each offset last.
    last_owners: BTreeMap<u32, PodId>,
}

impl PodAddresses {
    /// Returns the pool of a node whose Pods live in `range`.
    pub fn new(range: Ipv4Cidr) -> PodAddresses {
        PodAddresses { range, last: 1, owners: Vec::new(), last_owners: BTreeMap::new() }
    }

    /// Returns how many Pods fit `range`: not the network, gateway and broadcast addresses.
    pub fn capacity(range: Ipv4Cidr) -> u64 {
        range.size().saturating_sub(3)
    }

    /// Returns the node's bridge address, its Pods' gateway.
    pub fn gateway(range: Ipv4Cidr) -> Ipv4Addr {
        range.address(1).unwrap_or(range.base())
    }

    /// Gives `pod` the next free address.
    pub fn allocate(&mut self, pod: PodId) -> Option<Ipv4Addr> {
        let end = self.end();
        let offset =
            (self.last + 1..end).chain(2..=self.last).find(|&offset| self.slot(offset).is_err())?;
        self.last = offset;
        self.insert(offset, pod)
    }

    /// Gives `pod` the highest free address.
    pub fn allocate_from_top(&mut self, pod: PodId) -> Option<Ipv4Addr> {
        let offset = (2..self.end()).rev().find(|&offset| self.slot(offset).is_err())?;
        self.insert(offset, pod)
    }

    /// Takes `addr` back.
    pub fn release(&mut self, addr: Ipv4Addr) {
        if let Some(Ok(slot)) = self.offset(addr).map(|offset| self.slot(offset)) {
            self.owners.remove(slot);
        }
    }

    /// Returns the Pod that has `addr`.
    pub fn owner(&self, addr: Ipv4Addr) -> Option<PodId> {
        let slot = self.slot(self.offset(addr)?).ok()?;
        Some(self.owners[slot].1)
    }

    /// Returns whether one more of at most `max_pods` Pods finds an address.
    pub fn fit(&self, max_pods: usize) -> bool {
        self.len() < max_pods && (self.len() as u64) < PodAddresses::capacity(self.range)
    }

    /// Returns the Pod that had `addr` last.
    pub fn last_owner(&self, addr: Ipv4Addr) -> Option<PodId> {
        self.last_owners.get(&self.offset(addr)?).copied()
    }

    /// Returns how many addresses are taken.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// Returns whether none is taken.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    fn end(&self) -> u32 {
        u32::try_from(self.range.size().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    fn offset(&self, addr: Ipv4Addr) -> Option<u32> {
        self.range.contains(addr).then(|| u32::from(addr) - u32::from(self.range.base()))
    }

    fn slot(&self, offset: u32) -> Result<usize, usize> {
        self.owners.binary_search_by_key(&offset, |owner| owner.0)
    }

    fn insert(&mut self, offset: u32, pod: PodId) -> Option<Ipv4Addr> {
        let slot = self.slot(offset).expect_err("the address is free");
        self.owners.insert(slot, (offset, pod));
        self.last_owners.insert(offset, pod);
        self.range.address(u64::from(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Id;

    fn cidr(text: &str) -> Ipv4Cidr {
        let (addr, len) = text.split_once('/').unwrap();
        Ipv4Cidr::new(addr.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    #[test]
    fn cluster_ips_start_above_the_static_band_and_spill_into_it() {
        let mut ips = ClusterIps::new(cidr("10.0.0.0/27"));
        assert_eq!(ips.allocate_next(0).unwrap(), Ipv4Addr::new(10, 0, 0, 17));
        for _ in 0..13 {
            ips.allocate_next(0).unwrap();
        }
        // 14 dynamic addresses are gone; the static band has .2 to .16 left.
        assert_eq!(ips.allocate_next(0).unwrap(), Ipv4Addr::new(10, 0, 0, 2));
        for _ in 0..14 {
            ips.allocate_next(u64::MAX).unwrap();
        }
        assert_eq!(ips.allocate_next(0), Err(AllocateError::Full));
    }

    #[test]
    fn explicit_cluster_ips_are_checked() {
        let mut ips = ClusterIps::new(cidr("10.96.0.0/12"));
        let dns = Ipv4Addr::new(10, 96, 0, 10);
        assert_eq!(ips.allocate(dns), Ok(()));
        assert_eq!(ips.allocate(dns), Err(AllocateError::Taken(dns)));
        for outside in [[10, 96, 0, 0], [10, 111, 255, 255], [10, 112, 0, 1]] {
            let error = ips.allocate(outside.into()).unwrap_err();
            assert!(matches!(error, AllocateError::OutOfRange { .. }), "{error}");
        }
    }

    #[test]
    fn pod_addresses_are_next_fit() {
        let mut pool = PodAddresses::new(cidr("10.244.1.0/29"));
        let pods: Vec<PodId> = (0..6).map(PodId::from_index).collect();
        let first = pool.allocate(pods[0]).unwrap();
        assert_eq!(first, Ipv4Addr::new(10, 244, 1, 2));
        pool.release(first);
        assert_eq!(pool.allocate(pods[1]), Some(Ipv4Addr::new(10, 244, 1, 3)));
        assert_eq!(pool.allocate_from_top(pods[2]), Some(Ipv4Addr::new(10, 244, 1, 6)));
        assert_eq!(pool.owner(Ipv4Addr::new(10, 244, 1, 6)), Some(pods[2]));
        assert_eq!(pool.allocate(pods[3]), Some(Ipv4Addr::new(10, 244, 1, 4)));
        assert_eq!(pool.allocate(pods[4]), Some(Ipv4Addr::new(10, 244, 1, 5)));
        assert_eq!(pool.allocate(pods[5]), Some(first), "wraps");
        assert_eq!(pool.allocate(pods[5]), None);
    }
}
