//! A budget is spent to its last step and no further.

use super::*;

/// Returns the steps left after `count`, of 1,000.
fn left(count: impl FnOnce(&mut Steps) -> Result<(), Spent>) -> Option<u64> {
    let mut steps = Steps::new(1_000);
    count(&mut steps).ok().map(|()| steps.left())
}

#[test]
fn each_kind_of_work_has_its_price() {
    let names = ["abcd".to_owned(), "é".repeat(4)];
    assert_eq!(left(|steps| steps.spend(1_000)), Some(0));
    assert_eq!(left(|steps| steps.spend(1_001)), None);
    assert_eq!(left(|steps| steps.visit(7)), Some(930));
    assert_eq!(left(|steps| steps.visit(101)), None);
    assert_eq!(left(|steps| steps.visit(usize::MAX)), None);
    assert_eq!(left(|steps| steps.read(11)), Some(998));
    assert_eq!(left(|steps| steps.look_up(&names)), Some(1_000 - 20 - 1 - 2));
    assert_eq!(left(|steps| steps.look_up(&vec![String::new(); 101])), None);
}
