//! The reader of `conntrack -L` neither panics nor hangs, what it writes back reads as the same,
//! and every connection enters a table or finds its tuples taken.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::conntrack::{Conntrack, Sysctls};
use netfilter_model::read::conntrack_entries;
use netfilter_model::time::SimTime;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let listings = conntrack_entries(&text).value;
    let mut table = Conntrack::new(Sysctls::default());
    let mut entered = 0;
    for listing in &listings {
        for written in [format!("{listing}"), format!("{listing:#}")] {
            let again = conntrack_entries(&written);
            assert_eq!(again.remarks, [], "{written}");
            assert_eq!(again.value, std::slice::from_ref(listing), "{written}");
        }
        entered += usize::from(table.insert(SimTime::ZERO, listing).is_ok());
    }
    assert_eq!(table.list(SimTime::ZERO).len(), entered);
    assert_eq!(table.delete(SimTime::ZERO, |_| true), entered);
});
