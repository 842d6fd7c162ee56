//! The test corpus, where it is present. A test that uses it says so and passes where it is not.

use std::path::{Path, PathBuf};

/// A file of the corpus: named by `GREENROOM_CORPUS`, else beside the workspace.
pub(crate) fn read(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/corpus");
    #[expect(clippy::disallowed_methods, reason = "tests alone are told where the corpus is")]
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
