//! todo
pub(crate) fn hosts_by_proxy() {}
