//! The reader of `iptables -L` neither panics nor hangs, and what it understands can be saved.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::read::{Source, WithCounters, iptables_listing, iptables_rules};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let read = iptables_listing(&text, Source::default());
    for dump in &read.value {
        let written = dump.iptables_save(WithCounters::Yes);
        iptables_rules(&written, Source::default());
    }
});
