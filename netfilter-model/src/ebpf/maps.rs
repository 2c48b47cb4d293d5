//! What an agent writes: frontends with their slots, backends, reverse NAT.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use super::maglev::Maglev;
use crate::prefix::Prefix;
use crate::tuple::{Family, Protocol};

/// The number of a frontend, by which answers are translated back; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevNatId(pub u16);

/// The number of a backend; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

/// Which traffic an entry is for, where the policies for both differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// From outside the cluster; where there is no other entry, all.
    #[default]
    External,
    /// From the cluster's own nodes and Pods.
    Internal,
}

/// The key of a frontend in the service map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The virtual address; the unspecified address stands for all nodes' ones.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// The scope.
    pub scope: Scope,
}

/// What a frontend stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    /// A Service's ClusterIP.
    ClusterIp,
    /// A port of the nodes.
    NodePort,
    /// A load balancer's address.
    LoadBalancer,
    /// One of `externalIPs`.
    ExternalIps,
}

/// Which traffic policies of a frontend's Service are `Local`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policies {
    /// `externalTrafficPolicy`.
    pub external_local: bool,
    /// `internalTrafficPolicy`.
    pub internal_local: bool,
}

/// A frontend: slot 0 of the service map, and the slots behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct Frontend {
    /// Its number.
    pub rev_nat: RevNatId,
    /// What it stands for.
    pub kind: FrontendKind,
    /// Its Service's policies.
    pub policies: Policies,
    /// Seconds for which a client stays with its backend.
    pub affinity: Option<u32>,
    /// It can be reached from outside the cluster.
    pub routable: bool,
    /// Sources that it accepts; empty accepts all.
    pub source_ranges: Vec<Prefix>,
    /// Slots 1 and up. The first `count` take new connections, the others only keep old ones.
    pub slots: Arc<[BackendId]>,
    /// How many slots take new connections.
    pub count: u16,
    /// The lookup table, if backends are chosen by Maglev.
    pub maglev: Option<Arc<Maglev>>,
}

/// Whether a backend takes connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendState {
    /// It does.
    #[default]
    Active,
    /// Its Pod is being deleted; it takes new ones where there is no active one.
    Terminating,
    /// Its Pod is being deleted and does not answer any more.
    TerminatingNotServing,
    /// Found unhealthy.
    Quarantined,
    /// It keeps those that it has.
    Maintenance,
}

/// A backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
    /// Its state.
    pub state: BackendState,
}

/// A version of the maps that an agent writes.
pub trait View {
    /// Returns a frontend with its slots.
    fn frontend(&self, key: &FrontendKey) -> Option<&Frontend>;

    /// Returns a backend.
    fn backend(&self, id: BackendId) -> Option<Backend>;

    /// Returns the address and port to which answers are translated back.
    fn rev_nat(&self, id: RevNatId) -> Option<(IpAddr, u16)>;

    /// Returns whether clients may stay with a backend of a frontend.
    fn affinity_match(&self, frontend: RevNatId, backend: BackendId) -> bool;
}

/// The maps as one value.
///
/// Numbers are given in order of entry from 1 on, as an agent that starts gives them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Maps {
    frontends: BTreeMap<FrontendKey, Frontend>,
    backends: BTreeMap<BackendId, Backend>,
    ids: BTreeMap<(IpAddr, u16, Protocol), BackendId>,
    rev_nat: BTreeMap<RevNatId, (IpAddr, u16)>,
    affinity_match: BTreeSet<(RevNatId, BackendId)>,
}

/// How many entries each map has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// `cilium_lb*_services_v2`: frontends, and their slots.
    pub services: usize,
    /// `cilium_lb*_backends_v3`.
    pub backends: usize,
    /// `cilium_lb*_reverse_nat`.
    pub rev_nat: usize,
    /// `cilium_lb_affinity_match`.
    pub affinity_match: usize,
    /// `cilium_lb*_source_range`.
    pub source_ranges: usize,
    /// `cilium_lb*_maglev`: lookup tables.
    pub maglev: usize,
}

impl FrontendKey {
    /// Returns the key of scope [`Scope::External`].
    pub const fn external(address: IpAddr, port: u16, protocol: Protocol) -> FrontendKey {
        FrontendKey { address, port, protocol, scope: Scope::External }
    }

    /// Returns the same key of another scope.
    pub const fn scoped(self, scope: Scope) -> FrontendKey {
        FrontendKey { scope, ..self }
    }

    /// Returns the same port at all nodes.
    pub const fn wildcard(self) -> FrontendKey {
        let address = match self.address {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        FrontendKey { address, ..self }
    }
}

impl Frontend {
    /// Returns a frontend without a number of which all slots take new connections. Those of
    /// ClusterIPs are not routable, the others are.
    pub fn new(kind: FrontendKind, slots: Vec<BackendId>) -> Frontend {
        Frontend {
            rev_nat: RevNatId(0),
            kind,
            policies: Policies::default(),
            affinity: None,
            routable: kind != FrontendKind::ClusterIp,
            source_ranges: Vec::new(),
            count: slots.len() as u16,
            slots: slots.into(),
            maglev: None,
        }
    }

    /// Returns the backends that take new connections.
    pub fn active(&self) -> &[BackendId] {
        self.slots.get(..usize::from(self.count)).unwrap_or(&self.slots)
    }

    /// Returns whether there are entries for both scopes.
    // Cilium: pkg/loadbalancer/loadbalancer.go, NewSvcFlag
    pub fn has_two_scopes(&self) -> bool {
        let Policies { external_local, internal_local } = self.policies;
        external_local != internal_local && self.kind != FrontendKind::ClusterIp
    }
}

impl Maps {
    /// Adds a backend, in place of one of its address, port and protocol, and returns its number.
    pub fn add_backend(&mut self, backend: Backend) -> BackendId {
        let key = (backend.address, backend.port, backend.protocol);
        let next = BackendId(self.ids.len() as u32 + 1);
        let id = *self.ids.entry(key).or_insert(next);
        self.backends.insert(id, backend);
        id
    }

    /// Adds a frontend, in place of one of its key, whose number it keeps; returns the number, or
    /// `None` if all 65,535 are taken.
    pub fn add_frontend(&mut self, key: FrontendKey, mut frontend: Frontend) -> Option<RevNatId> {
        frontend.rev_nat = match self.frontends.get(&key) {
            Some(before) => before.rev_nat,
            None => RevNatId(u16::try_from(self.frontends.len() + 1).ok()?),
        };
        let id = frontend.rev_nat;
        let before = (id, BackendId(0))..=(id, BackendId(u32::MAX));
        let before: Vec<_> = self.affinity_match.range(before).copied().collect();
        for entry in before {
            self.affinity_match.remove(&entry);
        }
        if frontend.affinity.is_some() {
            let active = |backend: &&BackendId| {
                let known = self.backends.get(backend);
                known.is_some_and(|backend| backend.state == BackendState::Active)
            };
            let matches = frontend.slots.iter().filter(active).map(|backend| (id, *backend));
            self.affinity_match.extend(matches);
        }
        self.rev_nat.insert(id, (key.address, key.port));
        self.frontends.insert(key, frontend);
        Some(id)
    }

    /// Takes a backend out of the backend map, and out of the slots of all frontends. Its number
    /// is not given again.
    pub fn remove_backend(&mut self, id: BackendId) {
        self.backends.remove(&id);
        self.affinity_match.retain(|(_, backend)| *backend != id);
        for frontend in self.frontends.values_mut().filter(|f| f.slots.contains(&id)) {
            let gone = frontend.active().iter().filter(|backend| **backend == id).count();
            frontend.count -= gone as u16;
            frontend.slots = frontend.slots.iter().copied().filter(|other| *other != id).collect();
            if let Some(maglev) = &frontend.maglev {
                let size = maglev.size();
                let backends = &self.backends;
                let active = frontend.active().iter();
                let active = active.filter_map(|id| Some((*id, *backends.get(id)?)));
                frontend.maglev = Maglev::try_new(active, size).map(Arc::new);
            }
        }
    }

    /// Returns all frontends in order of their keys.
    pub fn frontends(&self) -> impl Iterator<Item = (&FrontendKey, &Frontend)> {
        self.frontends.iter()
    }

    /// Returns all backends in order of their numbers.
    pub fn backends(&self) -> impl Iterator<Item = (BackendId, &Backend)> {
        self.backends.iter().map(|(id, backend)| (*id, backend))
    }

    /// Returns how many entries each map has.
    pub fn counts(&self) -> Counts {
        let frontends = || self.frontends.values();
        Counts {
            services: frontends().map(|frontend| 1 + frontend.slots.len()).sum(),
            backends: self.backends.len(),
            rev_nat: self.rev_nat.len(),
            affinity_match: self.affinity_match.len(),
            source_ranges: frontends().map(|frontend| frontend.source_ranges.len()).sum(),
            maglev: frontends().filter(|frontend| frontend.maglev.is_some()).count(),
        }
    }
}

impl View for Maps {
    fn frontend(&self, key: &FrontendKey) -> Option<&Frontend> {
        self.frontends.get(key)
    }

    fn backend(&self, id: BackendId) -> Option<Backend> {
        self.backends.get(&id).copied()
    }

    fn rev_nat(&self, id: RevNatId) -> Option<(IpAddr, u16)> {
        self.rev_nat.get(&id).copied()
    }

    fn affinity_match(&self, frontend: RevNatId, backend: BackendId) -> bool {
        self.affinity_match.contains(&(frontend, backend))
    }
}

/// Returns the frontend of a packet or socket: that of the internal scope, if the sender is inside
/// the cluster and the policies differ.
// Cilium: bpf/lib/lb.h, lb4_lookup_service
pub(super) fn lookup<V: View>(view: &V, key: FrontendKey, from: Scope) -> Option<&Frontend> {
    let frontend = view.frontend(&key.scoped(Scope::External))?;
    if from == Scope::External || !frontend.has_two_scopes() {
        return Some(frontend);
    }
    view.frontend(&key.scoped(Scope::Internal))
}

/// Prints the name in listings.
impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::ClusterIp => "ClusterIP",
            FrontendKind::NodePort => "NodePort",
            FrontendKind::LoadBalancer => "LoadBalancer",
            FrontendKind::ExternalIps => "ExternalIPs",
        })
    }
}

/// Prints `address:port/PROTOCOL`, with `/i` behind it for the internal scope.
impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FrontendKey { address, port, protocol, scope } = *self;
        write!(f, "{}", Endpoint(address, port, protocol))?;
        if scope == Scope::Internal { f.write_str("/i") } else { Ok(()) }
    }
}

/// An address, a port and a protocol in text.
pub(super) struct Endpoint(pub(super) IpAddr, pub(super) u16, pub(super) Protocol);

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Endpoint(address, port, protocol) = *self;
        let name = protocol.to_string().to_ascii_uppercase();
        match Family::of(address) {
            Family::V4 => write!(f, "{address}:{port}/{name}"),
            Family::V6 => write!(f, "[{address}]:{port}/{name}"),
        }
    }
}
