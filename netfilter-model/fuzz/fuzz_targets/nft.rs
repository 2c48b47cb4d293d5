//! The reader of nftables neither panics nor hangs, what it reads can be written and run, and the
//! tables of iptables-nft come out of it too.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::nft::nft_list;
use netfilter_model::read::{nft_dump, nft_ruleset};
use netfilter_model::rule::iptables_save;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let ruleset = nft_ruleset(&text, 0).value;
    let written = nft_list(&ruleset);
    nft_list(&nft_ruleset(&written, 0).value);
    let dump = nft_dump(&text, 0).value;
    for rules in [dump.ipv4, dump.ipv6].into_iter().flatten() {
        iptables_save(&rules);
    }
});
