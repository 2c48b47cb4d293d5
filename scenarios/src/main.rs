//! `rulelag`: what rules that arrive late cost.

mod expect;
mod file;
mod library;
mod units;

fn main() {
    let mut reader = file::Reader::default();
    let name = std::env::args().nth(1).unwrap_or_default();
    if let Some(s) = reader.scenario(&name, &[]) {
        reader.points(&s);
    }
    reader.finish();
}
