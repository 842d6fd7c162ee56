//! The sizes of futures.

use super::*;

fn size_of_future<F>(_: fn(&'static Shared, &'static str, Batch) -> F) -> usize {
    size_of::<F>()
}

/// Each append allocates its future: what seldom happens in it is allocated when it does.
#[test]
fn the_future_of_an_append_is_small() {
    let bytes = size_of_future(|shared, session, batch| shared.append(session, batch));
    assert!(bytes <= 1_024, "{bytes} bytes");
}
