//! Tests of `questions`.
