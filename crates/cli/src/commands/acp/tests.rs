//! Tests of `acp`.
