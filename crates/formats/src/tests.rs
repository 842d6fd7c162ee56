//! Tests of the whole crate: random sessions, and access to the corpus.

pub(crate) mod corpus;
mod random;
