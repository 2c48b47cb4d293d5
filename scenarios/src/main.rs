//! `rulelag`: what rules that arrive late cost.

fn main() {}
