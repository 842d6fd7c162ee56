//! Mounts of places, drawn as lines.

use super::*;

fn paths(text: &str) -> Vec<PathBuf> {
    text.split_whitespace().map(PathBuf::from).collect()
}

fn drawn(mount: &Mount) -> String {
    match mount {
        Mount::Root => "root".to_owned(),
        Mount::Devices => "devices".to_owned(),
        Mount::Replaced { folder, at } => format!("{} as {}", folder.display(), at.display()),
        Mount::Writable(path) => format!("rw {}", path.display()),
        Mount::ReadOnly(path) => format!("ro {}", path.display()),
        Mount::Empty(path) => format!("empty {}", path.display()),
        Mount::Blank(path) => format!("blank {}", path.display()),
    }
}

/// Places as text: writable, read-only, empty and blank ones.
fn check(writable: &str, read_only: &str, empty: &str, blank: &str, expect: &str) {
    let places = Places {
        writable: paths(writable),
        read_only: paths(read_only),
        empty: paths(empty),
        blank: paths(blank),
        ..Places::default()
    };
    let found: Vec<String> = mounts(&places).iter().map(drawn).collect();
    assert_eq!(found.join(", "), expect, "{places:?}");
}

#[test]
fn places_become_mounts() {
    check("/w", "", "", "", "rw /w");
    check("/w /w/a /v", "", "", "", "rw /v, rw /w");
    // What is on the way to a protected place stays where it is.
    check(
        "/w",
        "/w/.git/hooks /w/.git/config",
        "",
        "",
        "rw /w, rw /w/.git, ro /w/.git/config, ro /w/.git/hooks",
    );
    check("/w", "/w/a/b/.git", "", "", "rw /w, rw /w/a, rw /w/a/b, ro /w/a/b/.git");
    check("/w", "/w/a /w/a/b/c", "", "", "rw /w, rw /w/a/b, ro /w/a, ro /w/a/b/c");
    check("/w", "/x", "", "", "rw /w, ro /x");
    check("/w", "", "/h /h/i", "/h/i/j /k", "rw /w, empty /h, blank /k");
    check("/w", "", "/w/s/store", "/w/y", "rw /w, rw /w/s, empty /w/s/store, blank /w/y");
    // A hidden folder around the workspace is hidden before it.
    check("/h/w", "", "/h", "", "empty /h, rw /h/w");
}

#[test]
fn what_covers_everything_comes_first() {
    let places = Places {
        is_read_only: true,
        has_devices: true,
        replaced: vec![("/p".into(), "/tmp".into())],
        covered: paths("/run"),
        writable: paths("/tmp/w"),
        ..Places::default()
    };
    let found: Vec<String> = mounts(&places).iter().map(drawn).collect();
    assert_eq!(found, ["root", "devices", "/p as /tmp", "empty /run", "rw /tmp/w"]);
}
