//! Generator and arms.

use super::*;

fn features() -> Features {
    Features { backends: Backend::ALL.to_vec(), missing: Vec::new() }
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
        assert_eq!(case_of(&text).unwrap(), case);
        assert_eq!(case_of(&format!("{{\"case\": {text}}}")).unwrap(), case);
    }
    for text in ["{\"apiVersion\": \"rulelag/v1\"}", "[]", "7", "-A INPUT -j DROP"] {
        let error = case_of(text).unwrap_err();
        assert!(error.contains("--case wants a file that prove wrote"), "{error}");
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

/// Says that a test could not run. Where everything must run, that is a failure.
fn skip(reason: &str) {
    assert!(std::env::var("CI").as_deref() != Ok("true"), "skipped, which CI refuses: {reason}");
    eprintln!("skipped: {reason}");
}

#[test]
fn the_arms_agree_on_some_cases() {
    let missing = rig::missing(&Backend::ALL);
    if !missing.is_empty() {
        return skip(&missing.join(", "));
    }
    let proving = std::thread::spawn(|| {
        let mut rigs = Rigs::default();
        let features = probe(&mut rigs).map_err(|error| error.to_string())?;
        for number in 0..20 {
            let case = generate::case(1, number, &features);
            let verdict = compare(&case, &mut rigs);
            let differ = matches!(verdict, Ok(Verdict::Differ(_))) && confirmed(&case, &mut rigs);
            assert!(!differ, "{}: {verdict:?}", case.name);
            assert!(verdict.is_ok(), "{}: {verdict:?}", case.name);
        }
        Ok::<(), String>(())
    });
    match proving.join().expect("no panic") {
        Ok(()) => {}
        Err(reason) => skip(&reason),
    }
}
