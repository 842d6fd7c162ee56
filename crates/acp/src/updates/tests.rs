//! Tests of `updates`.
