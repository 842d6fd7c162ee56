//! A made-up project for the demo, where the folder has too little to fill a window.
//!
//! Invariants: it is the same in every run, and written only into a directory of its own, which is removed with it.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use greenroom_files::private;
use greenroom_terminal::time;

/// A folder with less text than this, in bytes, cannot fill a window without being read again and again.
pub(super) const ENOUGH_BYTES: u64 = 48 * 1024;
/// How deep folders are searched for text.
const DEPTH_MAX: usize = 6;

/// What the project's modules are about, with what they handle.
const MODULES: [(&str, &str, &str); 16] = [
    ("shelf", "Shelf", "where a book stands"),
    ("book", "Book", "a title with its copies"),
    ("copy", "Copy", "one copy of a book and its condition"),
    ("reader", "Reader", "a person with a library card"),
    ("card", "Card", "a card, and until when it is valid"),
    ("loan", "Loan", "who has which copy until when"),
    ("reservation", "Reservation", "who waits for which book"),
    ("fine", "Fine", "what a late return costs"),
    ("calendar", "Calendar", "the days on which the library is open"),
    ("catalogue", "Catalogue", "the search by title, author and subject"),
    ("branch", "Branch", "a building with its shelves and hours"),
    ("transfer", "Transfer", "a copy on its way between two branches"),
    ("purchase", "Purchase", "a book that was ordered and has not come yet"),
    ("report", "Report", "the numbers of a month"),
    ("letter", "Letter", "a reminder that is sent to a reader"),
    ("archive", "Archive", "what is kept after a copy has been withdrawn"),
];

/// What each module does with its things.
const TASKS: [(&str, &str); 9] = [
    ("find", "Returns the one with this number, or None."),
    ("add", "Adds one; a number that is taken is refused."),
    ("remove", "Removes one, unless something still refers to it."),
    ("count", "Counts those for which the condition holds."),
    ("sort", "Sorts them by date, the newest first."),
    ("check", "Checks that all of its fields agree with each other."),
    ("describe", "Describes it in one line, for a list."),
    ("store", "Writes it as a line of JSON."),
    ("load", "Reads it from a line of JSON."),
];

/// The project's directory. Dropping it removes it.
pub(super) struct Sample {
    dir: PathBuf,
}

impl Drop for Sample {
    fn drop(&mut self) {
        // Otherwise the system removes it when it cleans the temporary directory.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Sample {
    /// The project's root.
    pub(super) fn root(&self) -> PathBuf {
        self.dir.join("lending-library")
    }
}

/// Writes the project into a new directory.
///
/// # Errors
/// The disk is full, or the temporary directory cannot be written.
pub(super) fn write() -> io::Result<Sample> {
    let name = format!("greenroom-demo-project-{}-{}", time::stamp(time::now_ms()), std::process::id());
    let dir = std::env::temp_dir().join(name);
    private::create_folder(&dir)?;
    let sample = Sample { dir };
    let root = sample.root();
    for folder in ["src", "tests", "docs"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    let mut readme = "# Lending library\n\nA made-up project for the demo of Greenroom.\n\n".to_owned();
    for (module, thing, about) in MODULES {
        let _ = writeln!(readme, "- `src/{module}.py`: {thing}, {about}");
        std::fs::write(root.join(format!("src/{module}.py")), source(module, thing, about))?;
        std::fs::write(root.join(format!("tests/test_{module}.py")), test(module, thing))?;
        std::fs::write(root.join(format!("docs/{module}.md")), page(module, thing, about))?;
    }
    std::fs::write(root.join("README.md"), readme)?;
    Ok(sample)
}

fn source(module: &str, thing: &str, about: &str) -> String {
    let mut text = format!(
        "\"\"\"{thing}: {about}.\"\"\"\n\nimport json\n\n\nclass {thing}Error(Exception):\n    pass\n"
    );
    for (index, (task, meaning)) in TASKS.iter().enumerate() {
        let _ = write!(
            text,
            "\n\ndef {task}_{module}({module}s, key={index}, condition=None):\n    \"\"\"{meaning}\n\n    It is about {about}.\n    \
             \"\"\"\n    chosen = [each for each in {module}s if condition is None or condition(each)]\n    if key < 0:\n        \
             raise {thing}Error(f\"{task}: there is no {module} {{key}}\")\n    line = json.dumps([str(each) for each in \
             chosen[:key]])\n    return line if \"{task}\" in (\"store\", \"describe\") else chosen\n"
        );
    }
    text
}

fn test(module: &str, thing: &str) -> String {
    let mut text = format!("import pytest\n\nfrom src import {module}\n");
    for (task, meaning) in TASKS {
        let _ = write!(
            text,
            "\n\ndef test_{task}_{module}():\n    # {meaning}\n    known = [1, 2, 3]\n    assert {module}.{task}_{module}(known, 2) is not \
             None\n    with pytest.raises({module}.{thing}Error):\n        {module}.{task}_{module}(known, -1)\n"
        );
    }
    text
}

fn page(module: &str, thing: &str, about: &str) -> String {
    let mut text = format!("# {thing}\n\nThe module `{module}` knows {about}.\n");
    for (task, meaning) in TASKS {
        let _ = write!(text, "\n## {task}_{module}\n\n{meaning} A negative key raises `{thing}Error`.\n");
    }
    text
}

/// Whether a folder has enough text for the demo.
pub(super) fn is_enough(folder: &Path) -> bool {
    text_bytes(folder, ENOUGH_BYTES, 0) >= ENOUGH_BYTES
}

/// Returns how much text a folder has, in bytes, up to about `enough`.
fn text_bytes(folder: &Path, enough: u64, depth: usize) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let mut bytes = 0;
    for entry in entries.flatten().take(2_000) {
        let name = entry.file_name();
        let Ok(kind) = entry.file_type() else { continue };
        if name.as_encoded_bytes().starts_with(b".") || kind.is_symlink() {
            continue;
        }
        if kind.is_dir() && depth < DEPTH_MAX {
            bytes += text_bytes(&entry.path(), enough.saturating_sub(bytes), depth + 1);
        } else if kind.is_file() && is_text(&entry.path()) {
            bytes += entry.metadata().map(|metadata| metadata.len()).unwrap_or_default();
        }
        if bytes >= enough {
            break;
        }
    }
    bytes
}

/// Whether a file begins like a text.
fn is_text(path: &Path) -> bool {
    use std::io::Read as _;
    let mut start = [0; 512];
    let read = std::fs::File::open(path).and_then(|mut file| file.read(&mut start));
    read.is_ok_and(|count| !start[..count].contains(&0))
}
