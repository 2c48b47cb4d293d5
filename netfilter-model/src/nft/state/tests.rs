use super::*;
use crate::nft::Type;
use crate::nft::set::{Element, SetData};

#[test]
fn removed_elements_leave_the_others_findable() {
    let mut set = Set::new("s", [Type::Mark], SetData::None);
    set.extend((0..50u128).map(|at| Element::of([at])));
    set.state = Some(0);
    let table = Table::new(Family::Ip, "t");
    let mut state = State::default();
    for gone in (0..50u128).step_by(3) {
        state.remove(&table, &set, &[gone]);
    }
    for key in 0..50u128 {
        let found = state.find(&table, &set, &[key], SimTime::ZERO).is_some();
        assert_eq!(found, key % 3 != 0, "{key}");
    }
}
