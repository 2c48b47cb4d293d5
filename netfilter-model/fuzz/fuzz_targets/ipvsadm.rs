//! The reader of `ipvsadm -Ln` and `ipvsadm -S -n` neither panics nor hangs, and what it writes
//! back reads as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::read::ipvsadm;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let read = ipvsadm(&text);
    // What does not show a scheduler is written without one.
    if read.remarks.is_empty() {
        let (listed, saved) = (read.value.list(), read.value.save());
        let again = ipvsadm(&listed);
        assert_eq!(again.remarks, [], "{listed}");
        assert_eq!(again.value.list(), listed);
        let again = ipvsadm(&saved);
        assert_eq!(again.remarks, [], "{saved}");
        assert_eq!(again.value.save(), saved);
    }
});
