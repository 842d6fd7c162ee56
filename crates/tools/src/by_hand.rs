//! How much a test does that also has a long form, which is run by hand.

/// Returns the number in an environment variable, or else a default.
pub(crate) fn wanted(variable: &str, default: u64) -> u64 {
    let set = crate::privacy::variable(variable).and_then(|number| number.into_string().ok());
    set.map_or(default, |number| number.parse().expect("the variable has a number"))
}
