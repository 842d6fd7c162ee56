//! The five documents that compaction was built after, one module each, named after the document's number. The
//! documents describe the compaction of five other systems and are not part of this repository; each module says in
//! its header what its document is about. A test's name is a sentence of its document, as far as we agree with it:
//! ADR 15 names the sentences that do not hold here. One that several documents have is shown once, in the first.

mod seed_000;
mod seed_001;
mod seed_002;
mod seed_003;
mod seed_004;
