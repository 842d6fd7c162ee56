//! State is found by its type, or reported missing.

use super::AppState;

#[derive(Debug, PartialEq)]
struct Pool(u32);

#[test]
fn a_value_is_found_by_its_type_and_one_that_is_missing_is_named() {
    let empty = AppState::default();
    let state = empty.clone().with(Pool(1)).with("a name").with(Pool(2));
    assert_eq!(*state.get::<Pool>().expect("it is there"), Pool(2));
    assert_eq!(*state.get::<&str>().expect("it is there"), "a name");
    let missing = state.get::<u8>().expect_err("it is not there").to_string();
    let pool = std::any::type_name::<Pool>();
    assert_eq!(
        missing,
        format!(
            "the agent has no state of type `u8`, only of `&str`, `{pool}`; give it one with `Agent::state`"
        )
    );
    // A clone does not see values added to another.
    let missing = empty.get::<Pool>().expect_err("it is not there").to_string();
    assert_eq!(missing, format!("the agent has no state of type `{pool}`; give it one with `Agent::state`"));
}
