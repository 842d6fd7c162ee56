//! What is forgotten.

use super::*;

#[test]
fn only_what_nobody_knows_or_uses_is_forgotten() {
    let slots = Slots::default();
    let (first, second) = (slots.of("a"), slots.of("a"));
    slots.done("a", first);
    assert_eq!(slots.len(), 1, "the second user has it still");
    second.set(State::Lost);
    slots.done("a", second);
    assert_eq!((slots.len(), slots.state("a")), (1, State::Lost), "a lost session is remembered");
    let third = slots.of("a");
    third.set(State::Unknown);
    slots.done("a", third);
    assert_eq!((slots.len(), slots.state("a")), (0, State::Unknown));
}
