//! Linux netfilter at packet level: the kernel of one node, as far as the traffic of Kubernetes
//! Services meets it. No Kubernetes, no event queue, no files.
//!
//! ```text
//!  device ─► PREROUTING ─► routing ─┬─► FORWARD ──────────► POSTROUTING ─► device
//!            raw            (Host)  │   mangle               mangle
//!            conntrack              │   filter               nat (source)
//!            mangle                 │   security             confirm
//!            nat (destination)      │                           ▲
//!                                   └─► INPUT ─► socket ─► OUTPUT ┘
//!                                       mangle             raw
//!                                       filter             conntrack
//!                                       security           mangle        (reroutes)
//!                                       nat (source)       nat (destination, reroutes)
//!                                       confirm            filter
//!                                                          security
//! ```
//!
//! - [`packet`], [`mod@tuple`]: a packet is a struct of fields.
//! - [`hook`]: hooks, tables, and their order as data.
//! - [`mod@set`]: ipsets, which rules match and change.
//! - [`read`]: what iptables, ipset, ipvsadm and their like print, read back, with a remark for
//!   what is not understood.
//! - [`ipvs`]: services of IPVS as data.
//! - [`ebpf`]: Services in eBPF maps, and what Cilium's programs do with sockets and packets.
//! - [`rule`]: matches, targets, chains; building and checking whole rulesets or parts of them;
//!   writing them as `iptables-save` does.
//! - [`traverse`]: the loop over rules.
//! - [`nft`]: nftables, whose chains run between the tables of x_tables.
//! - [`conntrack`]: connections, their states and timeouts.
//! - [`netns`]: one network namespace; packets go in, outcomes come out.
//! - [`exact`]: every way of a packet, and the exact probability of each.
//! - [`network`]: several namespaces joined by links, with sockets.
//! - [`host`]: what the caller supplies: routes, addresses, device names, random numbers.
//!
//! Modelled: the five hooks and five tables of iptables and the chains of nftables beside them, for
//! IPv4 and IPv6, with the matches and targets that kube-proxy, CNIs, docker and firewalls write
//! ([`rule::Match`] and [`rule::Target`] name them all); ipsets, `recent`, `limit` and `hashlimit`;
//! jumps, gotos, policies, and how many rules a linear walk looks at; connection tracking with
//! tentative entries, clashes, zones, timeouts, TCP states and windows; NAT decided by the first
//! packet, its port search, null bindings, and translation of ICMP errors; what the sender of a
//! rejected packet is told, within the rate limit of ICMP errors; fragments, bridged frames,
//! loopback, rerouting. What cannot be modelled is kept, named, and taken both ways.
//!
//! Not modelled: payload and checksums, helpers of connection tracking, the path MTU, queues and
//! neighbour tables (the caller's), what IPVS does with packets.
//!
//! ```
//! use netfilter_model::hook::{Hook, Table};
//! use netfilter_model::rule::{Nat, NatRange, Origin, Rule, RulesetBuilder, Target, iptables_save};
//! use netfilter_model::Prefix;
//! use netfilter_model::tuple::Protocol;
//!
//! let mut builder = RulesetBuilder::new();
//! let prerouting = builder.builtin(Table::Nat, Hook::Prerouting);
//! let rewrite = Nat::Dnat(NatRange::to([10, 244, 1, 5].into(), 8080));
//! let rule = Rule::new(Origin::default())
//!     .destination(Prefix::host([10, 96, 0, 10].into()))
//!     .dport(Protocol::TCP, 80)
//!     .then(Target::Nat(rewrite));
//! builder.append(Table::Nat, prerouting, rule);
//! let ruleset = builder.build()?;
//! assert!(iptables_save(&ruleset).contains(
//!     "-A PREROUTING -d 10.96.0.10/32 -p tcp -m tcp --dport 80 \
//!      -j DNAT --to-destination 10.244.1.5:8080"
//! ));
//! # Ok::<(), netfilter_model::rule::ValidationError>(())
//! ```

pub mod conntrack;
mod device;
pub mod ebpf;
pub mod exact;
mod hash;
pub mod hook;
pub mod host;
pub mod ipvs;
mod nat;
pub mod netns;
pub mod network;
pub mod nft;
pub mod packet;
mod prefix;
pub mod read;
pub mod rule;
pub mod set;
#[cfg(test)]
mod testing;
pub mod time;
pub mod traverse;
pub mod tuple;

pub use device::{DeviceId, DeviceName, DeviceNameError, DevicePattern};
pub use prefix::Prefix;
