//! What happens at one hook.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use super::nft::meets_nft_nat;
use super::routing::set_out;
use super::{DropReason, Flight, Netns, Stop};
use crate::conntrack::{Confirmed, CtInfo, Direction, Holder, Status, Track, Tracked, Unconfirmed};
use crate::hook::{Hook, Step, Table, steps};
use crate::host::{Draws, Env, Host, Note};
use crate::nat;
use crate::nft::Planned;
use crate::packet::Packet;
use crate::rule::{Chain, CtStates, Nat, NatRange, Policy, RuleRef, Rules};
use crate::traverse::{Context, Traversal, Verdict, traverse};
use crate::tuple::Side;

impl Netns {
    /// Runs everything at a hook, in the kernel's order.
    #[inline]
    pub(super) fn run_hook<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        // The device that the rest of OUTPUT sees stays the old one when nat reroutes.
        let out_dev = flight.out.map(|(dev, _)| dev);
        flight.seen_out_dev = out_dev.filter(|_| hook.has_output_device());
        env.draws.note(Note::Hook(hook, &flight.packet));
        if env.rules.ipvs().is_some() {
            return self.run_hook_with_ipvs(hook, flight, env);
        }
        let Some(nft) = env.rules.nft() else {
            for (_, step) in steps(hook) {
                if let Step::Table(table) = step
                    && env.rules.base(*table, hook).is_none()
                {
                    continue;
                }
                self.run_step(*step, hook, flight, env)?;
            }
            return Ok(());
        };
        for (_, step) in nft.steps(flight.packet.tuple.src().is_ipv4(), hook) {
            match step {
                Planned::Fixed(step) => self.run_step(*step, hook, flight, env)?,
                Planned::Chain(chain) => self.run_nft(nft, *chain, hook, flight, env)?,
            }
        }
        Ok(())
    }

    /// Runs what stands at a hook with these priorities.
    pub(super) fn run_steps<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        priorities: RangeInclusive<i32>,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let Some(nft) = env.rules.nft() else {
            for (priority, step) in steps(hook) {
                if priorities.contains(priority) {
                    self.run_step(*step, hook, flight, env)?;
                }
            }
            return Ok(());
        };
        for (priority, step) in nft.steps(flight.packet.tuple.src().is_ipv4(), hook) {
            if !priorities.contains(priority) {
                continue;
            }
            match step {
                Planned::Fixed(step) => self.run_step(*step, hook, flight, env)?,
                Planned::Chain(chain) => self.run_nft(nft, *chain, hook, flight, env)?,
            }
        }
        Ok(())
    }

    #[inline]
    fn run_step<H: Host, R: Rules, D: Draws>(
        &mut self,
        step: Step,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        match step {
            Step::Track => self.track(hook, flight, env),
            Step::Confirm => self.confirm(hook, flight, env),
            Step::Table(Table::Nat) => {
                // Whatever else translation rewrites, it rewrites the tuple.
                let before = flight.packet;
                self.translate(hook, flight, env)?;
                if before.tuple != flight.packet.tuple {
                    let after = &flight.packet;
                    env.draws.note(Note::Translated { hook, before: &before, after });
                    if hook == Hook::Output && after.tuple.dst() != before.tuple.dst() {
                        reroute(flight, env)?;
                    }
                }
                Ok(())
            }
            Step::Table(table) => self.filter(table, hook, flight, env),
        }
    }

    fn track<H, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        // A packet that has come through the loopback device keeps what it has.
        let tracked = flight.track.is_some_and(|track| !track.is_about_untracked());
        if tracked || !env.rules.tracks() {
            let info = flight.track.map(|track| (track.info, track.direction));
            env.draws.note(Note::Tracked { hook, info, new: false });
            return Ok(());
        }
        let received = hook == Hook::Prerouting;
        let (zones, own) = (flight.zones, &mut flight.entry);
        let packet = &flight.packet;
        let unknown = || {
            if let Some(code) = env.rules.code(Table::Nat) {
                code.look_ahead(&packet.tuple);
            }
        };
        let track = self.conntrack.track(env.now, packet, zones, received, own, unknown);
        let full = |_| Stop { hook, reason: DropReason::TableFull, tell: None };
        let mut track = track.map_err(full)?;
        // Kernel: nf_conntrack_core.c, nf_conntrack_in: an ICMP error about nothing leaves what it
        // came with.
        let about_untracked = flight.track.is_some_and(|track| track.is_about_untracked());
        if about_untracked && track.info == CtInfo::Invalid && flight.packet.is_icmp_error() {
            track = Track::ABOUT_UNTRACKED;
        }
        flight.track = Some(track);
        let (info, new) = ((track.info, track.direction), track.holder == Holder::Tentative);
        env.draws.note(Note::Tracked { hook, info: Some(info), new });
        Ok(())
    }

    fn confirm<H, R, D>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        // An answer that shares a rejected packet's entry does not confirm it.
        let Some(track) = &mut flight.track else {
            return Ok(());
        };
        if track.holder != Holder::Tentative || track.direction != Direction::Original {
            return Ok(());
        }
        let refused = |why| {
            let reason = match why {
                Unconfirmed::Clash => DropReason::Clash,
                Unconfirmed::ChainTooLong => DropReason::TableFull,
            };
            Stop { hook, reason, tell: None }
        };
        let confirmed = self.conntrack.confirm(env.now, &mut flight.entry);
        let Confirmed { at, reversed } = confirmed.map_err(refused)?;
        track.holder = Holder::Table(at);
        if reversed {
            (track.info, track.direction) = (CtInfo::Established, Direction::Reply);
        }
        Ok(())
    }

    /// Runs a table that decides whether the packet passes.
    fn filter<H: Host, R: Rules, D: Draws>(
        &mut self,
        table: Table,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let Some(chain) = env.rules.base(table, hook) else {
            return Ok(());
        };
        if is_idle(chain) {
            note_policy(table, chain, hook, env);
            return Ok(());
        }
        let (mark, dst) = (flight.packet.mark, flight.packet.tuple.dst());
        let Traversal { verdict, rule, .. } = self.walk(table, chain, hook, flight, env);
        let by = match verdict {
            Verdict::Reject(_) => DropReason::Reject,
            Verdict::Unfinished => DropReason::Unfinished,
            _ => DropReason::Rule,
        };
        let reason = rule.map_or(DropReason::Policy(table.into()), by);
        match verdict {
            Verdict::Accept => {}
            Verdict::Drop | Verdict::Unfinished => {
                return Err(Stop { hook, reason, tell: None });
            }
            Verdict::Reject(with) => {
                return Err(Stop { hook, reason, tell: Some(with) });
            }
            Verdict::Nat(nat) => unreachable!("{nat:?} in table {table}"),
        }
        // Kernel: iptable_mangle.c, ipt_mangle_out: of all tables, mangle alone reroutes by mark.
        let changed = (mark, dst) != (flight.packet.mark, flight.packet.tuple.dst());
        if changed && table == Table::Mangle && hook == Hook::Output {
            reroute(flight, env)?;
        }
        Ok(())
    }

    /// Returns the packet and what rules see beside it.
    #[inline]
    pub(super) fn context<'c, H: Host, R: Rules, D: Draws>(
        &'c mut self,
        hook: Hook,
        flight: &'c mut Flight,
        env: &'c mut Env<'_, H, R, D>,
    ) -> (&'c mut Packet, Context<'c, H, D>) {
        let track = flight.track.as_ref();
        let ct_state =
            track.map_or(CtStates::INVALID, |track| track.states(&self.conntrack, &flight.entry));
        let cx = Context {
            host: env.host,
            draws: &mut *env.draws,
            ordinal: &mut flight.ordinal,
            in_dev: flight.in_dev.filter(|_| hook.has_input_device()),
            out_dev: flight.seen_out_dev,
            hook,
            now: env.now,
            ct_state,
            ct: Tracked {
                table: &mut self.conntrack,
                own: &mut flight.entry,
                track: &mut flight.track,
                zones: &mut flight.zones,
            },
            ingress: flight.ingress,
            out_port: flight.out_port,
            socket: flight.socket,
            virtual_end: flight.virtual_end,
            memory: &mut self.memory,
        };
        (&mut flight.packet, cx)
    }

    /// Runs a table's chain.
    fn walk<H: Host, R: Rules, D: Draws>(
        &mut self,
        table: Table,
        chain: &Chain,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Traversal {
        let (rules, lookup) = (env.rules, self.lookup);
        let (packet, mut cx) = self.context(hook, flight, env);
        let traversal = traverse(rules, table, chain, packet, &mut cx, lookup);
        flight.evaluated = flight.evaluated.saturating_add(traversal.evaluated);
        if traversal.rule.is_none() {
            note_policy(table, chain, hook, env);
        }
        traversal
    }

    /// Runs address translation: the rules for a first packet, the rewrite for every one.
    // Kernel: nf_nat_core.c, nf_nat_inet_fn
    #[inline]
    fn translate<H: Host, R: Rules, D: Draws>(
        &mut self,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let chain = env.rules.base(Table::Nat, hook);
        if chain.is_none() && !meets_nft_nat(env.rules, flight) {
            return Ok(());
        }
        let Some(track) = &flight.track else {
            return Ok(());
        };
        let side = hook.nat_side();
        if track.info == CtInfo::Related && flight.packet.is_icmp_error() {
            if let Some(entry) = track.entry(&self.conntrack, &flight.entry) {
                nat::translate_error(entry, track.direction, side, &mut flight.packet);
            }
            return Ok(());
        }
        if track.holder == Holder::Tentative
            && let Some(entry) = &flight.entry
            && !entry.status.contains(Status::nat_done(side))
        {
            self.decide(chain, hook, flight, env)?;
        }
        let Some(track) = &flight.track else {
            return Ok(());
        };
        let Some(entry) = track.entry(&self.conntrack, &flight.entry) else {
            return Ok(());
        };
        if hook == Hook::Postrouting
            && track.direction == Direction::Original
            && entry.masquerade_dev.is_some_and(|dev| Some(dev) != flight.out.map(|out| out.0))
        {
            if let Holder::Table(at) = track.holder {
                self.conntrack.kill(at);
            }
            return Err(Stop { hook, reason: DropReason::DeviceChanged, tell: None });
        }
        nat::translate(entry, track.direction, side, &mut flight.packet);
        Ok(())
    }

    /// Asks the rules what to do with one side of a new connection.
    fn decide<H: Host, R: Rules, D: Draws>(
        &mut self,
        chain: Option<&Chain>,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<(), Stop> {
        let Some((nat, rule)) = self.ask_nat(chain, hook, flight, env)? else {
            self.set_up(hook.nat_side(), None, flight, env);
            return Ok(());
        };
        let Some(range) = concrete_range(&nat, hook, flight, env.host) else {
            return Err(Stop { hook, reason: DropReason::NoAddress(rule), tell: None });
        };
        let out = flight.out;
        self.set_up(hook.nat_side(), Some(&range), flight, env);
        let entry = flight.entry.as_mut().expect("just decided");
        match nat {
            Nat::Masquerade(_) => entry.masquerade_dev = out.map(|(dev, _)| dev),
            Nat::Netmap(_) if hook.nat_side() == Side::Source => {}
            Nat::Snat(_) => {}
            Nat::Dnat(_) | Nat::Redirect(_) | Nat::Netmap(_) => {
                entry.dnat_rule = Some(rule);
                flight.dnat = Some(rule);
            }
        }
        Ok(())
    }

    /// Asks table nat. What translates nothing may drop: iptables refuses to write that, yet
    /// iptables-restore sets any policy, and a target that cannot be modelled may do anything.
    // Kernel: nf_nat_core.c, nf_nat_inet_fn
    pub(super) fn ask_xt_nat<H: Host, R: Rules, D: Draws>(
        &mut self,
        chain: &Chain,
        hook: Hook,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) -> Result<Option<(Nat, RuleRef)>, Stop> {
        if is_idle(chain) {
            note_policy(Table::Nat, chain, hook, env);
            return Ok(None);
        }
        let Traversal { verdict, rule, .. } = self.walk(Table::Nat, chain, hook, flight, env);
        match verdict {
            Verdict::Nat(nat) => Ok(Some((nat, rule.expect("a rule translates")))),
            Verdict::Accept => Ok(None),
            Verdict::Drop | Verdict::Reject(_) | Verdict::Unfinished => {
                let by = match verdict {
                    Verdict::Unfinished => DropReason::Unfinished,
                    _ => DropReason::Rule,
                };
                let reason = rule.map_or(DropReason::Policy(Table::Nat.into()), by);
                Err(Stop { hook, reason, tell: None })
            }
        }
    }

    fn set_up<H, R, D: Draws>(
        &mut self,
        side: Side,
        range: Option<&NatRange>,
        flight: &mut Flight,
        env: &mut Env<'_, H, R, D>,
    ) {
        let ordinal = &mut flight.ordinal;
        let draws = &mut *env.draws;
        let mut draw = || {
            *ordinal += 1;
            draws.draw(*ordinal - 1)
        };
        let entry = flight.entry.as_mut().expect("only a tentative connection is decided");
        match range {
            Some(range) => {
                nat::set_up(&mut self.conntrack, env.now, entry, side, range, &mut draw);
            }
            None => nat::set_up_null(&mut self.conntrack, env.now, entry, side, &mut draw),
        }
    }
}

/// Returns the range with the addresses that depend on a device filled in; `None` if it has none.
fn concrete_range<'n, H: Host>(
    nat: &'n Nat,
    hook: Hook,
    flight: &Flight,
    host: &H,
) -> Option<Cow<'n, NatRange>> {
    let address = match nat {
        Nat::Dnat(range) | Nat::Snat(range) => return Some(Cow::Borrowed(range)),
        // Kernel: xt_NETMAP.c, netmap_tg4
        Nat::Netmap(prefix) => {
            let old = flight.packet.tuple.address(hook.nat_side());
            return Some(Cow::Owned(NatRange::address(prefix.map(old))));
        }
        Nat::Masquerade(_) => {
            let (dev, next_hop) = flight.out.expect("POSTROUTING has an output device");
            host.masquerade_address(dev, next_hop)?
        }
        // Kernel: nf_nat_redirect.c, nf_nat_redirect_ipv4
        Nat::Redirect(_) if hook == Hook::Output => match flight.packet.tuple.dst() {
            std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
            std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
        },
        Nat::Redirect(_) => {
            let dev = flight.in_dev.expect("PREROUTING has an input device");
            host.redirect_address(dev, flight.packet.tuple.src())?
        }
    };
    let NatRange { ports, flags, .. } = *nat.range().expect("only NETMAP has none");
    Some(Cow::Owned(NatRange { ports, flags, ..NatRange::address(address) }))
}

/// Routes a packet made here again, since OUTPUT has changed where it goes. Its source stays.
// Kernel: netfilter.c, ip_route_me_harder
pub(super) fn reroute<H: Host, R, D: Draws>(
    flight: &mut Flight,
    env: &mut Env<'_, H, R, D>,
) -> Result<(), Stop> {
    let query = flight.route_query();
    let route = env.host.route(query);
    env.draws.note(Note::Routed { hook: Hook::Output, query, route });
    set_out(flight, route, env.host)
}

/// Tells that a built-in chain ended without a verdict.
#[inline]
fn note_policy<H, R, D: Draws>(
    table: Table,
    chain: &Chain,
    hook: Hook,
    env: &mut Env<'_, H, R, D>,
) {
    let policy = chain.policy().expect("a built-in chain");
    let (table, chain) = (table.into(), chain.id());
    env.draws.note(Note::Policy { hook, table, chain, policy });
}

/// Returns whether the chain lets everything pass without a look.
#[inline]
fn is_idle(chain: &Chain) -> bool {
    chain.rules().is_empty() && chain.slot().is_none() && chain.policy() == Some(Policy::Accept)
}
