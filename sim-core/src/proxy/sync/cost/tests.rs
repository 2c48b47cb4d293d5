use super::*;

/// Seconds of a restore alone: what was measured, without kube-proxy's own work.
fn restore_s(backend: Backend, held: u64, written: u64) -> f64 {
    let cost = SyncCost {
        per_service: Duration::ZERO,
        per_rule_made: Duration::ZERO,
        ensure: Duration::ZERO,
        ..SyncCost::of(backend)
    };
    let rules = |nat| Rules { filter: 0, nat };
    let work = Work { held: rules(held), written: rules(written), ..Work::default() };
    cost.phases(backend, &work).total().as_secs_f64()
}

/// Checks a back end's times, in seconds, for 1,000 and 10,000 Services of ten endpoints:
/// everything, and one changed Service; each within `tolerance`, as a share.
#[track_caller]
fn check(backend: Backend, tolerance: f64, expected: [(f64, f64); 2]) {
    for (services, (full, partial)) in [1000, 10_000].into_iter().zip(expected) {
        let (held, written) = match backend {
            Backend::Nftables => (22 * services, 22),
            _ => (32 * services, services + 31),
        };
        for (written, expected) in [(held, full), (written, partial)] {
            let model = restore_s(backend, held, written);
            let error = model / expected - 1.0;
            assert!(error.abs() <= tolerance, "{services}: {model}, not {expected}: {error:+.2}");
        }
    }
}

// What kube-proxy's kind of rules took on a machine of two cores with Linux 6.18.

#[test]
fn legacy_restores_take_what_they_took() {
    check(Backend::IptablesLegacy, 0.10, [(0.55, 0.31), (14.7, 2.9)]);
}

#[test]
fn restores_through_nft_take_what_they_took() {
    check(Backend::IptablesNft, 0.25, [(1.3, 0.056), (22.0, 0.43)]);
}

#[test]
fn transactions_of_nftables_take_what_they_took() {
    check(Backend::Nftables, 0.45, [(1.4, 0.16), (185.0, 1.5)]);
}

#[test]
fn filter_comes_first_and_only_iptables_has_it() {
    let rules = Rules { filter: 40, nat: 4000 };
    let work = Work { services: 100, held: rules, written: rules, ..Work::default() };
    for backend in [Backend::IptablesLegacy, Backend::IptablesNft] {
        let phases = SyncCost::of(backend).phases(backend, &work);
        assert!(phases.filter > Duration::ZERO && phases.filter < phases.nat, "{phases:?}");
    }
    let phases = SyncCost::of(Backend::Nftables).phases(Backend::Nftables, &work);
    assert_eq!(phases.filter, Duration::ZERO);
}

#[test]
fn worked_phases() {
    let micros = Duration::from_micros;
    let cost = SyncCost {
        base: micros(1000),
        ensure: micros(30),
        per_service: micros(10),
        per_rule_made: micros(1),
        per_rule_written: micros(2),
        per_rule_held: micros(3),
        per_rule_listed: micros(4),
        doubling_rules: 50,
        scale: 1.0,
    };
    let work = Work {
        full: false,
        lists: false,
        services: 7,
        held: Rules { filter: 10, nat: 100 },
        written: Rules { filter: 10, nat: 25 },
    };
    // prepare 500 + 7·10 + 35·1; filter 250 + 10·3 + 10·2·1.2; nat 250 + 100·3 + 25·2·1.5.
    let phases = cost.phases(Backend::IptablesLegacy, &work);
    assert_eq!(phases.prepare, micros(605));
    assert_eq!(phases.filter, micros(304));
    assert_eq!(phases.nat, micros(625));
    // A full sync looks for 30 µs of chains; a listing has 110 rules.
    let more = Work { full: true, lists: true, ..work };
    assert_eq!(cost.phases(Backend::IptablesLegacy, &more).prepare, micros(605 + 30 + 440));
    let off = SyncCost { scale: 0.0, ..cost };
    assert_eq!(off.phases(Backend::IptablesLegacy, &more), Phases::default());
}

/// A Service was added where there were 10,000 of two endpoints in nftables mode: eight minutes
/// with full syncs, 141 ms with partial ones (kubernetes/kubernetes#126013). The reporter's
/// machine is slower at large loads than the one that the coefficients are from.
#[test]
fn a_partial_sync_of_nftables_is_three_thousand_times_shorter_there() {
    let cost = SyncCost {
        base: Duration::from_millis(140),
        per_service: Duration::ZERO,
        per_rule_made: Duration::ZERO,
        per_rule_held: Duration::ZERO,
        doubling_rules: 132,
        ..SyncCost::of(Backend::Nftables)
    };
    let sync = |services: u64, full: bool| {
        let held = Rules { filter: 0, nat: services * 6 };
        let written = if full { held } else { Rules { filter: 0, nat: 6 } };
        let work = Work { full, services, held, written, ..Work::default() };
        cost.phases(Backend::Nftables, &work).total().as_secs_f64()
    };
    assert!((sync(10_000, true) / 480.0 - 1.0).abs() < 0.02, "{}", sync(10_000, true));
    let ratio = sync(10_000, true) / sync(10_000, false);
    assert!((3200.0..3600.0).contains(&ratio), "{ratio}");
    assert_eq!(sync(10_000, false), sync(100, false), "whatever there is besides");
}

/// 44,125 Services in nftables mode: 16 min 44 s for everything, of which 63 s were spent on
/// listing; a change took more than a minute with the listing and 1.33 s without
/// (kubernetes/kubernetes#139513).
#[test]
fn a_listing_dominates_partial_syncs_of_many_services() {
    let rules = 44_125 * 4;
    let cost = SyncCost {
        base: Duration::ZERO,
        per_service: Duration::from_micros(30),
        per_rule_made: Duration::ZERO,
        per_rule_held: Duration::ZERO,
        per_rule_listed: Duration::from_nanos(63_000_000_000 / rules),
        doubling_rules: 595,
        ..SyncCost::of(Backend::Nftables)
    };
    let sync = |services: u64, full: bool, lists: bool| {
        let held = Rules { filter: 0, nat: services * 4 };
        let written = if full { held } else { Rules { filter: 0, nat: 4 } };
        let work = Work { full, lists, services, held, written };
        cost.phases(Backend::Nftables, &work).total().as_secs_f64()
    };
    let full = sync(44_125, true, true);
    assert!((950.0..1050.0).contains(&full), "{full}");
    assert!(sync(44_125, false, true) > 60.0);
    assert!((1.2..1.5).contains(&sync(44_125, false, false)));
    // Faster than linear for everything, linear for the listing.
    let growth = (sync(40_000, true, false) / sync(10_000, true, false)).log2() / 2.0;
    assert!((1.8..2.0).contains(&growth), "{growth}");
    assert!((sync(40_000, false, true) / sync(10_000, false, true) - 4.0).abs() < 0.01);
}

/// Scaling one Service to 5,000 Pods at 50 a second, when each addition rewrites the whole list
/// (kubernetes/kubernetes#24552): the work is quadratic, and linear when a batch writes it once.
#[test]
fn rewriting_everything_for_each_addition_is_quadratic() {
    let cost = SyncCost { doubling_rules: u64::MAX, ..SyncCost::of(Backend::IptablesNft) };
    let total = |endpoints: u64, batch: u64| -> f64 {
        let sync = |n: u64| {
            let rules = Rules { filter: 4, nat: 7 + 3 * n };
            let work = Work { services: 1, held: rules, written: rules, ..Work::default() };
            // What every sync costs, however little it writes, is not what the report is about.
            let of = |work: &Work| cost.phases(Backend::IptablesNft, work).total().as_secs_f64();
            of(&work) - of(&Work::default())
        };
        (1..=endpoints / batch).map(|step| sync(step * batch)).sum()
    };
    let (few, many) = (total(1250, 1), total(5000, 1));
    assert!((many / few).log2() / 2.0 > 1.95, "{few} {many}");
    let (few, many) = (total(1250, 1250), total(5000, 5000));
    assert!((many / few - 4.0).abs() < 0.03, "{few} {many}");
}

/// Whatever a scenario asks for, times do not overflow.
#[test]
fn a_sync_ends() {
    let rules = Rules { filter: 0, nat: u64::MAX / 4 };
    let work = Work { full: true, held: rules, written: rules, services: 1, ..Work::default() };
    for backend in [Backend::IptablesNft, Backend::Nftables, Backend::Ipvs, Backend::Ebpf] {
        let given = SyncCostConfig { scale: 1e6, ..SyncCostConfig::default() };
        let total = SyncCost::with(backend, &given).phases(backend, &work).total();
        assert!(total <= 3 * LONGEST_PHASE, "{backend:?} {total:?}");
        assert!(total >= LONGEST_PHASE, "{backend:?} {total:?}");
    }
}
