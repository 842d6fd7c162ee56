//! Reads the test corpus, which is not part of the project.
//!
//! Invariants: if the corpus is absent, the tests that use it report that they are skipped, and pass.

use std::path::{Path, PathBuf};

/// Returns a file of the corpus, in the folder that `GREENROOM_CORPUS` names or beside the workspace; `None`
/// if it is absent.
pub(crate) fn read(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    #[expect(clippy::disallowed_methods, reason = "only tests read the location of the corpus")]
    let root = std::env::var_os("GREENROOM_CORPUS").map_or_else(beside, PathBuf::from);
    let text = std::fs::read_to_string(root.join(name)).ok();
    if text.is_none() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: {name} is not in the corpus at {}", root.display());
        }
    }
    text
}
