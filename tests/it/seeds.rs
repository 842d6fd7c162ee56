//! The five documents that compaction was built after, one module each, named after the document's number.
//! A test's name is a sentence of it; `docs/compaction.md` has the table.

mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_004;
