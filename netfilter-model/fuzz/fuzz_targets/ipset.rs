//! The reader of `ipset save` and `ipset list` neither panics nor hangs, and what it writes back
//! reads as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netfilter_model::read::ipset;
use netfilter_model::time::SimTime;

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let sets = ipset(&text).value;
    let saved = sets.save(SimTime::ZERO);
    let again = ipset(&saved);
    assert_eq!(again.remarks, [], "{saved}");
    assert_eq!(again.value.save(SimTime::ZERO), saved);
    for set in sets.iter() {
        let listed = set.list(SimTime::ZERO);
        let again = ipset(&listed);
        assert_eq!(again.remarks, [], "{listed}");
        assert_eq!(again.value.save(SimTime::ZERO), set.save(SimTime::ZERO));
    }
});
