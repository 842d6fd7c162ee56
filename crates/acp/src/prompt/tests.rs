//! Tests of `prompt`.
