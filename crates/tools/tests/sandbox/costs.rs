//! todo
pub(crate) fn cost() {}
