//! The fleet with mimalloc on both sides: `fleet` has the allocator of the C library, as a program has that does not
//! choose one.

#[path = "fleet.rs"]
mod fleet;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    fleet::main();
}
