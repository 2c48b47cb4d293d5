use proptest::prelude::*;

use super::*;

fn range() -> impl Strategy<Value = Range> {
    prop_oneof![
        (0u128..64).prop_map(|value| (value, value)),
        (0u128..64, 0u32..5).prop_map(|(value, bits)| {
            let host = (1 << bits) - 1;
            (value & !host, value | host)
        }),
        (0u128..64, 0u128..9).prop_map(|(min, len)| (min, min + len)),
    ]
}

proptest! {
    #[test]
    fn indexed_is_linear(
        keys in prop::collection::vec((range(), range()), 0..40),
        asked in prop::collection::vec((0u128..80, 0u128..80), 20),
    ) {
        let mut set = Set::new("", [Type::Mark, Type::Mark], SetData::None);
        set.extend(keys.iter().map(|(a, b)| Element::ranges([*a, *b])));
        set.finish();
        for (a, b) in &asked {
            let key = [*a, *b].into_iter();
            prop_assert_eq!(set.find(key.clone()), set.find_linear(key));
        }
        let mut set = Set::new("", [Type::Mark], SetData::None);
        set.extend(keys.iter().map(|(a, _)| Element::ranges([*a])));
        set.finish();
        for (a, _) in &asked {
            let key = [*a].into_iter();
            prop_assert_eq!(set.find(key.clone()).is_some(), set.find_linear(key).is_some());
        }
    }
}

#[test]
fn one_of_ten_thousand_is_found() {
    let mut set = Set::new("", [Type::Ipv4Addr, Type::InetService], SetData::None);
    set.extend((0..20_000u128).map(|at| Element::of([at / 7, at % 7])));
    assert_eq!(set.finish(), []);
    assert_eq!(set.find([1000, 3].into_iter()), Some(7003));
    assert_eq!(set.find([1000, 9].into_iter()), None);
}
