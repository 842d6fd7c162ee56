//! The treatment of repositories that a command creates.

use super::*;

struct Work(tempfile::TempDir);

impl Work {
    /// Makes files: `a=text`, `a!text` can be executed, `a->b` is a link.
    fn new(entries: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let work = Self(folder);
        work.make(entries);
        work
    }

    fn make(&self, entries: &[&str]) {
        for entry in entries {
            let place = ["->", "=", "!"].iter().filter_map(|sign| entry.find(sign)).min().expect("a sign");
            let path = self.0.path().join(&entry[..place]);
            std::fs::create_dir_all(path.parent().expect("in the folder")).expect("made");
            match entry.as_bytes()[place] {
                b'-' => std::os::unix::fs::symlink(&entry[place + 2..], &path).expect("linked"),
                sign => {
                    std::fs::write(&path, entry[place + 1..].replace('|', "\n")).expect("written");
                    let mode = if sign == b'!' { 0o755 } else { 0o644 };
                    std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
                }
            }
        }
    }

    fn known(&self) -> Repositories {
        let root = self.0.path().to_owned();
        let mut known = Vec::new();
        visit(&root, ENTRIES_MAX, |_, path| known.push(path.to_owned()));
        Repositories { root, known }
    }

    /// The files that git can execute or read as configuration.
    fn armed(&self) -> String {
        let mut found = Vec::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
                let (path, metadata) = (entry.path(), entry.path().symlink_metadata().expect("it exists"));
                if metadata.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == ASIDE) {
                    // git does not look at it.
                } else if metadata.is_symlink()
                    || metadata.permissions().mode() & 0o111 != 0
                    || path.ends_with("config")
                    || path.ends_with("commondir")
                {
                    found.push(path.strip_prefix(self.0.path()).expect("inside").display().to_string());
                }
            }
        }
        found.sort();
        found.join(" ")
    }
}

#[test]
fn what_git_would_run_in_a_new_repository_is_disarmed() {
    const PLAIN: &str = "n/.git/config=[core]|\tbare = false|[remote \"origin\"]|\turl = https://x/y|[branch \"main\"]|\tmerge = r";
    // What is there before, what the command makes, what can still run, and whether it is said.
    let rows: &[(&[&str], &[&str], &str, bool)] = &[
        (&[], &["a=1", "b!x"], "b", false),
        (
            &[],
            &[PLAIN, "n/.git/hooks/pre-commit.sample!x"],
            "n/.git/config n/.git/hooks/pre-commit.sample",
            false,
        ),
        (&[], &["n/.git/HEAD=x", "n/.git/hooks/pre-commit!x", PLAIN], "n/.git/config", true),
        (&[], &["a/b/c/d/e/f/g/.git/hooks/post-checkout!x"], "", true),
        (&[], &["n/.git/HEAD=x", "x/pre-commit!x", "n/.git/hooks->../../x"], "x/pre-commit", true),
        (&[], &["x!x", "n/.git/hooks/pre-push->../../../x"], "x", true),
        (&[], &["n/.git/config=[core]|\tfsmonitor = ./x"], "", true),
        (&[], &["n/.git/config=[core] hooksPath = ../x"], "", true),
        (&[], &["n/.git/config=[alias]|\tst = !x"], "", true),
        (&[], &["n/.git/config=[include]|\tpath = ../x"], "", true),
        (&[], &["n/.git/config=[filter \"x\"]|\tclean = x"], "", true),
        (&[], &["n/.git/config=[remote \"o\"]|\turl = ext::sh -c x"], "", true),
        (&[], &["n/.git/config=[remote \"o\"]|\turl = a\\|\tb"], "", true),
        (&[], &["n/.git/config=x"], "", true),
        (&[], &["n/.git/commondir=../x", "n/.git/HEAD=x"], "", true),
        (&[], &["n/.git/config->../x", "n/x=1"], "", true),
        // A file that names a folder.
        (&[], &["n/.git=gitdir: ../e", "e/hooks/pre-commit!x", "e/HEAD=x"], "", true),
        (&[], &["n/.git=gitdir: /usr", "e=1"], "", false),
        // A bare repository, and a folder that names one.
        (
            &[],
            &[
                "n/HEAD=x",
                "n/objects/x=1",
                "n/refs/x=1",
                "n/config=[core]|fsmonitor = x",
                "n/hooks/pre-push!x",
            ],
            "",
            true,
        ),
        (&[], &["HEAD->x", "objects->x", "refs->x", "config=[alias]|st = !x"], "HEAD objects refs", true),
        (&[], &["n/HEAD=x", "n/commondir=../x", "n/config=[core]|pager = x"], "", true),
        (
            &[],
            &["n/HEAD=x", "n/objects/x=1", "n/config=[alias]|st = !x", "n/hooks/x!x"],
            "n/config n/hooks/x",
            false,
        ),
        (
            &["n/HEAD=x", "n/objects/x=1", "n/refs/x=1", "n/config=[alias]|st = !x"],
            &["n/x=1"],
            "n/config",
            false,
        ),
        // What was there before.
        (
            &["n/.git/hooks/pre-commit!x", "n/.git/config=[core]|fsmonitor = x"],
            &["n/.git/x=1"],
            "n/.git/config n/.git/hooks/pre-commit",
            false,
        ),
        (
            &["n/.git/hooks/pre-commit!x"],
            &["w/.git=gitdir: ../n/.git/worktrees/w", "n/.git/worktrees/w/HEAD=x"],
            "n/.git/hooks/pre-commit",
            false,
        ),
    ];
    for (before, made, armed, is_said) in rows {
        let work = Work::new(before);
        let known = work.known();
        work.make(made);
        let said = known.disarm();
        assert_eq!(work.armed(), *armed, "{made:?}: {said:?}");
        assert_eq!(said.len(), usize::from(*is_said), "{made:?}: {said:?}");
        // Once is enough.
        assert_eq!(known.disarm(), Vec::<String>::new(), "{made:?}");
    }
}
