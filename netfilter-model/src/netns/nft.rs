//! Chains of nftables at the hooks of a network namespace.

use super::step::reroute;
use super::{DropReason, Flight, Netns, Stop};
use crate::hook::Hook;
use crate::host::{Draws, Env, Host};
use crate::nft::{self, BaseChain, Kind, LiveKey};
use crate::rule::{Chain, Nat, RuleRef, Rules, TableId};
use crate::time::SimTime;
use crate::traverse::{Traversal, Verdict};
use crate::tuple::Side;

/// Where table nat of x_tables stands among the nat chains of a hook.
// Kernel: uapi/linux/netfilter_ipv4.h, NF_IP_PRI_NAT_DST and NF_IP_PRI_NAT_SRC
const fn xt_nat_priority(hook: Hook) -> i32 {
    match hook.nat_side() {
        Side::Destination => -100,
        Side::Source => 100,
    }
}

/// Returns whether address translation is there for the packet because of nftables.
#[inline]
pub(super) fn meets_nft_nat<R: Rules>(rules: &R, flight: &Flight) -> bool {
    rules.nft().is_some_and(|nft| nft.has_nat(flight.packet.tuple.src().is_ipv4()))
}

impl Netns {
    /// Goes over to another ruleset of nftables, as a transaction does: elements that packets
    /// have put into sets stay if the set does, lifetimes that the new ruleset lists count from
    /// now on.
    pub fn nft_replaced(&mut self, ruleset: &nft::Ruleset, now: SimTime) {
        self.memory.nft.replaced(ruleset, now);
    }

    /// Exchanges the state of the nftables ruleset for another: for hosts whose rules are seen in
    /// parts, one of which has the sets that a packet may meet.
    pub fn nft_exchanged(&mut self, state: nft::State) -> nft::State {
        std::mem::replace(&mut self.memory.nft, state)
    }

    /// Returns the keys that a set of nftables which packets or time change holds now, and how
    /// long each has to live; `None` for a set that has not been met yet, or does not change.
    pub fn nft_elements(
        &self,
        ruleset: &nft::Ruleset,
        (table, set): (usize, usize),
        now: SimTime,
    ) -> Option<Vec<LiveKey>> {
        let table = ruleset.tables().get(table)?;
        self.memory.nft.elements(table, table.sets.get(set)?, now)
    }

    /// Runs a base chain that is not of type nat.
    pub(super) fn run_nft<H: Host, R: Rules, D: Draws>(
        &mut self,
        nft: &nft::Ruleset,
        chain: BaseChain,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let before = flight.packet;
        let traversal = self.walk_nft(nft, chain, hook, flight, env);
        if let Some(stop) = stop_of(&traversal, chain, hook) {
            return Err(stop);
        }
        // Kernel: nft_chain_route.c, nf_route_table_hook4
        let changed = (before.mark, before.tuple.dst(), before.tuple.src(), before.tos)
            != (
                flight.packet.mark,
                flight.packet.tuple.dst(),
                flight.packet.tuple.src(),
                flight.packet.tos,
            );
        if changed && chain.kind == Kind::Route && hook == Hook::Output {
            reroute(flight, env)?;
        }
        Ok(())
    }

    fn walk_nft<H: Host, R: Rules, D: Draws>(
        &mut self,
        nft: &nft::Ruleset,
        chain: BaseChain,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Traversal {
        // A routed packet still has its input device at POSTROUTING.
        // Kernel: br_netfilter_hooks.c, br_nf_post_routing: a bridged one has not.
        let in_dev = flight.in_dev.filter(|_| !flight.bridged);
        let (packet, mut cx) = self.context(hook, flight, env);
        if hook == Hook::Postrouting {
            cx.in_dev = in_dev;
        }
        let traversal = nft::traverse(nft, chain, packet, &mut cx);
        flight.evaluated = flight.evaluated.saturating_add(traversal.evaluated);
        traversal
    }

    /// Asks all nat chains of a hook, in order of priority, until one translates.
    // Kernel: nf_nat_core.c, nf_nat_inet_fn
    #[inline]
    pub(super) fn ask_nat<H: Host, R: Rules, D: Draws>(
        &mut self,
        xt: Option<&Chain>,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Option<(Nat, RuleRef)>, Stop> {
        let Some(nft) = env.rules.nft() else {
            return match xt {
                Some(chain) => self.ask_xt_nat(chain, hook, flight, env),
                None => Ok(None),
            };
        };
        let chains = nft.nat_chains(flight.packet.tuple.src().is_ipv4(), hook);
        let priority = xt_nat_priority(hook);
        let (before, after) =
            chains.split_at(chains.partition_point(|chain| chain.priority <= priority));
        if let Some(found) = self.ask_nft_nat(nft, before, hook, flight, env)? {
            return Ok(Some(found));
        }
        if let Some(chain) = xt
            && let Some(found) = self.ask_xt_nat(chain, hook, flight, env)?
        {
            return Ok(Some(found));
        }
        self.ask_nft_nat(nft, after, hook, flight, env)
    }

    fn ask_nft_nat<H: Host, R: Rules, D: Draws>(
        &mut self,
        nft: &nft::Ruleset,
        chains: &[BaseChain],
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Option<(Nat, RuleRef)>, Stop> {
        for chain in chains {
            let traversal = self.walk_nft(nft, *chain, hook, flight, env);
            if let Some(stop) = stop_of(&traversal, *chain, hook) {
                return Err(stop);
            }
            if let Traversal { verdict: Verdict::Nat(nat), rule: Some(rule), .. } = traversal {
                return Ok(Some((nat, rule)));
            }
        }
        Ok(None)
    }
}

/// Returns why the packet goes no further, if it does not.
fn stop_of(traversal: &Traversal, chain: BaseChain, hook: Hook) -> Option<Stop> {
    let policy = DropReason::Policy(TableId::Nft(chain.table));
    match &traversal.verdict {
        Verdict::Accept | Verdict::Nat(_) => None,
        Verdict::Drop => {
            let reason = traversal.rule.map_or(policy, DropReason::Rule);
            Some(Stop { hook, reason, tell: None })
        }
        Verdict::Reject(with) => {
            let reason = traversal.rule.map_or(policy, DropReason::Reject);
            Some(Stop { hook, reason, tell: Some(*with) })
        }
        Verdict::Unfinished => {
            let reason = traversal.rule.map_or(policy, DropReason::Unfinished);
            Some(Stop { hook, reason, tell: None })
        }
    }
}
