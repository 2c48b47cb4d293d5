//! The reader of `iptables-save` and `iptables -S` neither panics nor hangs, and what it writes
//! back reads as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::read::{Source, WithCounters, iptables_rules};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let read = iptables_rules(&text, Source::default());
    for dump in &read.value {
        let source = Source { family: Some(dump.ruleset.family()), ..Source::default() };
        let written = dump.iptables_save(WithCounters::Yes);
        let again = iptables_rules(&written, source);
        // What is unsupported is written as it was found and may read as something else.
        if read.remarks.is_empty() {
            assert_eq!(again.value.len(), 1, "{written}\n{:?}", again.remarks);
            assert_eq!(again.value[0].iptables_save(WithCounters::Yes), written);
        }
    }
});
