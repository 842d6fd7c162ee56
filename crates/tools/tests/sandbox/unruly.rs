//! todo
pub(crate) fn commands() {}
pub(crate) fn processes_are_limited() {}
pub(crate) fn long_output() {}
pub(crate) fn limits() {}
