//! Generator and arms.

use super::*;

fn features() -> Features {
    Features { backends: vec![Backend::Legacy, Backend::IptablesNft], missing: Vec::new() }
}

#[test]
fn a_case_depends_on_its_seed_and_number_alone() {
    let features = features();
    let alone = generate::case(7, 300, &features);
    for number in 0..300 {
        let _ = generate::case(7, number, &features);
    }
    assert_eq!(generate::case(7, 300, &features), alone);
    assert_ne!(generate::case(8, 300, &features).rules, alone.rules);
    assert_ne!(generate::case(7, 301, &features).rules, alone.rules);
}

#[test]
fn a_case_is_the_same_when_read_again() {
    for number in 0..200 {
        let case = generate::case(1, number, &features());
        let text = serde_json::to_string(&case).unwrap();
        assert_eq!(serde_json::from_str::<Case>(&text).unwrap(), case);
    }
}

#[test]
fn what_is_not_there_is_not_used() {
    let name = |backend| (Family::V4, backend, "recent".to_owned());
    let missing = vec![name(Backend::Legacy), name(Backend::IptablesNft)];
    let features = Features { missing, ..features() };
    for number in 0..300 {
        let case = generate::case(1, number, &features);
        let kube = |line: &String| line.contains("KUBE");
        let uses = |line: &&String| line.contains("-m recent") && !kube(line);
        let v4 = case.settings.family == Family::V4;
        assert_eq!(case.rules.lines.iter().find(uses).filter(|_| v4), None);
    }
}
