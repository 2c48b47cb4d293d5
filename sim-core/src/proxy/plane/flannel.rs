//! flannel's rules, which stand beside kube-proxy's.

use std::net::{IpAddr, Ipv4Addr};

use netfilter_model::Prefix;
use netfilter_model::hook::{Hook, Table};
use netfilter_model::rule::{Match, Nat, Origin, Rule, RulesetBuilder, SlotId, Target};

use crate::proxy::iptables::common::random_fully;

/// Adds flannel's rules, after kube-proxy's; returns where those about a node's own Pods go.
pub(super) fn common(rules: &mut RulesetBuilder, cluster: &Prefix, mark: u32) -> SlotId {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 1 });
    let postrouting = rules.chain(Table::Nat, "FLANNEL-POSTRTG");
    let builtin = rules.builtin(Table::Nat, Hook::Postrouting);
    let jump = rule().comment("flanneld masq").then(Target::Jump(postrouting));
    rules.append(Table::Nat, builtin, jump);
    let masq = |rule: Rule| rule.comment("flanneld masq");
    let marked = masq(rule().mark(mark, mark)).then(Target::Return);
    rules.append(Table::Nat, postrouting, marked);
    let slot = rules.slot(Table::Nat, postrouting);
    let multicast = Prefix::new(IpAddr::V4(Ipv4Addr::new(224, 0, 0, 0)), 4);
    for from_to in [
        rule().source(cluster.clone()).with(Match::Destination { prefix: multicast, invert: true }),
        rule().not_source(cluster.clone()).destination(cluster.clone()),
    ] {
        let masquerade = Target::Nat(Nat::Masquerade(random_fully()));
        rules.append(Table::Nat, postrouting, masq(from_to).then(masquerade));
    }
    let forward = rules.chain(Table::Filter, "FLANNEL-FWD");
    let builtin = rules.builtin(Table::Filter, Hook::Forward);
    let comment = "flanneld forward";
    let jump = rule().comment(comment).then(Target::Jump(forward));
    rules.append(Table::Filter, builtin, jump);
    for side in [rule().source(cluster.clone()), rule().destination(cluster.clone())] {
        rules.append(Table::Filter, forward, side.comment(comment).then(Target::Accept));
    }
    slot
}

/// flannel's rules about a node's own Pods: their traffic inside the cluster keeps its source.
pub(super) fn of_node(cluster: &Prefix, node: &Prefix) -> [Rule; 3] {
    let rule = || Rule::new(Origin { owner: u32::MAX, item: 1 });
    [
        rule().source(node.clone()).destination(cluster.clone()),
        rule().source(cluster.clone()).destination(node.clone()),
        rule().not_source(cluster.clone()).destination(node.clone()),
    ]
    .map(|rule| rule.comment("flanneld masq").then(Target::Return))
}
