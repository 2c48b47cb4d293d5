//! Text.
use crate::nft::{Rule, Ruleset, Table};
/// x
pub fn nft_list(_r: &Ruleset) -> String {
    String::new()
}
/// x
pub fn nft_rule(_t: &Table, _r: &Rule) -> String {
    String::new()
}
