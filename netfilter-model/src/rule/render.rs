//! stub
use crate::rule::Ruleset;
/// stub
pub fn iptables_save(_: &Ruleset) -> String {
    String::new()
}
/// stub
pub fn iptables_restore(_: &Ruleset) -> String {
    String::new()
}
