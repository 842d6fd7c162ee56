//! The treatment of repositories that a command creates.

use super::super::git::protected;
use super::*;

/// A workspace, `ws`, and another folder that commands can change, `out`.
struct Work {
    base: tempfile::TempDir,
    root: PathBuf,
}

impl Work {
    /// Makes files: `a=text`, `a!text` can be executed, `a->b` is a link; `a%000` sets permissions, and `a:b` renames.
    fn new(entries: &[&str]) -> Self {
        let base = tempfile::tempdir().expect("a folder");
        let real = base.path().canonicalize().expect("it exists");
        for name in ["ws", "out"] {
            std::fs::create_dir(real.join(name)).expect("made");
        }
        let work = Self { base, root: real.join("ws") };
        work.make(entries);
        work
    }

    fn make(&self, entries: &[&str]) {
        for entry in entries {
            let place =
                ["->", "=", "!", "%", ":"].iter().filter_map(|sign| entry.find(sign)).min().expect("a sign");
            let path = self.root.join(&entry[..place]);
            std::fs::create_dir_all(path.parent().expect("in the folder")).expect("made");
            match entry.as_bytes()[place] {
                b'%' => {
                    let mode = u32::from_str_radix(&entry[place + 1..], 8).expect("a mode");
                    std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
                }
                b':' => std::fs::rename(&path, self.root.join(&entry[place + 1..])).expect("renamed"),
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
        let found = protected(&self.root, None);
        let writable = vec![self.root.clone(), self.root.with_file_name("out")];
        let unsearched = vec![self.root.join("many")];
        let known = Repositories::new(
            &self.root, found.repositories, &found.writable, found.unexamined, unsearched, writable,
        );
        Repositories { since: self.later(), ..known }
    }

    /// A time of the file system that is after all that was made.
    fn later(&self) -> SystemTime {
        let probe = self.base.path().join("probe");
        let now = || {
            std::fs::write(&probe, "").expect("written");
            changed(&probe.metadata().expect("it exists"))
        };
        let before = now();
        loop {
            let after = now();
            if after > before {
                return after;
            }
        }
    }

    /// The files that git can execute or read as configuration, and those that lead it elsewhere.
    fn armed(&self) -> String {
        let mut found = Vec::new();
        let mut folders = vec![self.root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry")) {
                let (path, metadata) = (entry.path(), entry.path().symlink_metadata().expect("it exists"));
                if metadata.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == ASIDE) {
                    // git does not look at it.
                } else if path.ends_with(".git") && metadata.is_file() {
                    let leads_out = leads_to(&path).is_some_and(|to| !to.starts_with(&self.root));
                    found.extend(leads_out.then(|| self.shown(&path)));
                } else if metadata.is_symlink()
                    || metadata.permissions().mode() & 0o111 != 0
                    || path.ends_with("config")
                    || path.ends_with("commondir")
                {
                    found.push(self.shown(&path));
                }
            }
        }
        found.sort();
        found.join(" ")
    }

    fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).expect("inside").display().to_string()
    }
}

/// Checks what can still run after a command, and whether something is said; `before` is what is there before it.
fn check(before: &[&str], made: &[&str], armed: &str, is_said: bool) {
    let work = Work::new(before);
    let known = work.known();
    work.make(made);
    let said = known.disarm();
    assert_eq!(work.armed(), armed, "{made:?}: {said:?}");
    assert_eq!(said.len(), usize::from(is_said), "{made:?}: {said:?}");
    // Once is enough.
    assert_eq!(known.disarm(), Vec::<String>::new(), "{made:?}");
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
        (&[], &["n/.git/config=[remote \"o\"]|\turl = e\"xt::sh\" -c x"], "", true),
        // A bracket in quotes ends no head of a section.
        (&[], &["n/.git/config=[remote \"o]url=x\"] uploadpack = x|\turl = /r"], "", true),
        (&[], &["n/.git/config=x"], "", true),
        (&[], &["n/.git/commondir=../x", "n/.git/HEAD=x"], "", true),
        (&[], &["n/.git/config->../x", "n/x=1"], "", true),
        // A file that names a folder.
        (&[], &["n/.git=gitdir: ../e", "e/hooks/pre-commit!x", "e/HEAD=x"], "", true),
        (&[], &["n/.git=gitdir: /usr", "e=1"], "n/.git", false),
        // A bare repository, and a folder that names one.
        (
            &[],
            &[
                "n/HEAD=x", "n/objects/x=1", "n/refs/x=1", "n/config=[core]|fsmonitor = x",
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
        check(before, made, armed, *is_said);
    }
}

/// Wherever a command can put a repository, and however it leads git to it.
#[test]
fn a_repository_is_found_wherever_a_command_puts_it() {
    // The parts of one with a configuration that runs a program.
    let repository = |place: &str| {
        [
            format!("{place}/HEAD=x"),
            format!("{place}/objects/x=1"),
            format!("{place}/refs/x=1"),
            format!("{place}/config=[core]|fsmonitor = x"),
        ]
    };
    let own: &[&str] =
        &[".git/HEAD=x", ".git/objects/x=1", ".git/refs/x=1", ".git/config=[core]|bare = false"];
    let gone = ".git/config";
    // The place, and what else the command makes.
    let rows: &[(&str, &[&str])] = &[
        (".git/modules/m", &["m/.git=gitdir: ../.git/modules/m"]),
        (".git/modules/a/b/c/d/e/f", &[]),
        (".git/x", &["m/.git=gitdir: ../.git/x"]),
        (".git/objects/ab/x", &[]),
        (".git/refs/heads/x", &["m/.git->../.git/refs/heads/x"]),
        (".git/worktrees/w", &["m/.git=gitdir: ../.git/worktrees/w"]),
        (".git/x/.git", &[]),
        ("node_modules/p/.git", &[]),
        ("node_modules/a/node_modules/p", &["m/.git->../node_modules/a/node_modules/p"]),
        ("target/x/.git", &["s->target/x"]),
        (".venv/g", &["m/.git=gitdir: ../.venv/g"]),
        ("many/g", &["m/.git=gitdir: ../many/g"]),
        ("m/.GIT", &[]),
        ("h/g", &["m/.git=gitdir: ../h/g", "h%111"]),
        ("h/g", &["h%444"]),
        ("h/g", &["h%000"]),
        (".git/x", &[".git/x/config.not-used/x=1", ".git/x/config.2.not-used=1"]),
    ];
    for (place, made) in rows {
        let parts = repository(place);
        let made: Vec<&str> = parts.iter().map(String::as_str).chain(made.iter().copied()).collect();
        let links = made.iter().filter_map(|entry| entry.split_once("->")).map(|(link, _)| link);
        let mut armed: Vec<&str> = links.chain([gone]).collect();
        armed.sort_unstable();
        let work = Work::new(own);
        let known = work.known();
        work.make(&made);
        let said = known.disarm();
        let closed = work.root.join("h");
        if closed.exists() {
            let mode = closed.metadata().expect("it exists").permissions().mode() & 0o7777;
            assert_ne!(mode, 0o755, "its permissions are as the command left them");
            std::fs::set_permissions(&closed, Permissions::from_mode(0o755)).expect("set");
        }
        assert_eq!(work.armed(), armed.join(" "), "{made:?}: {said:?}");
        assert_eq!(said.len(), 1, "{made:?}: {said:?}");
    }
}

#[test]
fn what_leads_git_out_of_the_workspace_is_moved_aside() {
    let there: &[&str] = &["../out/g/HEAD=x", "../out/g/objects/x=1", "../out/g/refs/x=1"];
    let with = |more: &[&'static str]| [there, more].concat();
    for (before, made, armed, is_said) in [
        (with(&[]), &["m/.git=gitdir: ../../out/g"][..], "", true),
        (with(&[]), &["m/.git=gitdir: ../../out/g||"], "", true),
        (with(&[]), &["m/.git=gitdir: ../../out/g\0x"], "", true),
        (with(&[]), &["m/.git->../../out/g"], "", true),
        (with(&[]), &["gf=gitdir: ../../out/g", "m/.git->../gf"], "", true),
        (with(&[]), &["node_modules/m/.git=gitdir: ../../../out/g"], "", true),
        // A file that was there, and leads elsewhere now.
        (with(&["m/.git=gitdir: ../l/g", "l/x=1"]), &["l:k", "l->../out"], "l", true),
        (with(&["m/.git=gitdir: ../../out/h"]), &["../out/g:../out/h"], "", true),
        // As before.
        (with(&["m/.git=gitdir: ../../out/g"]), &["m/x=1"], "m/.git", false),
        (with(&["m/.git->../../out/g"]), &["m/x=1"], "m/.git", false),
        // Nothing that a command can change.
        (with(&[]), &["m/.git=gitdir: /usr"], "m/.git", false),
    ] {
        check(&before, made, armed, is_said);
    }
}

/// Work with git goes on.
#[test]
fn what_git_makes_is_left_as_it_is() {
    let own: &[&str] =
        &[".git/HEAD=x", ".git/objects/x=1", ".git/refs/x=1", ".git/config=[core]|bare = false"];
    const MODULE: &str =
        "[core]|\tbare = false|\tworktree = ../../../m|[remote \"origin\"]|\turl = https://x/y";
    let module = format!(".git/modules/m/config={MODULE}");
    let other = module.replace("../../../m", "../../../../out");
    let parts = [".git/modules/m/HEAD=x", ".git/modules/m/objects/x=1", ".git/modules/m/refs/x=1", "m/x=1"];
    let submodule = [&parts[..], &[&module, "m/.git=gitdir: ../.git/modules/m"]].concat();
    let worktree = [
        "w/.git=gitdir: ../.git/worktrees/w",
        ".git/worktrees/w/HEAD=x",
        ".git/worktrees/w/commondir=../..|",
        ".git/worktrees/w/gitdir=../../../w/.git",
    ];
    let both = ".git/config .git/modules/m/config";
    check(own, &submodule, both, false);
    check(own, &worktree, ".git/config .git/worktrees/w/commondir", false);
    check(
        &[own, &submodule, &worktree].concat(),
        &["w/x=1", "m/y=1"],
        &format!("{both} .git/worktrees/w/commondir"),
        false,
    );
    // The working folder of a repository is in the workspace, and its repository is the one that it is in.
    check(own, &[&parts[..], &[&other]].concat(), ".git/config", true);
    for common in ["../../x", "../.. |", "../../|../../x", "/usr"] {
        let common = format!(".git/worktrees/w/commondir={common}");
        check(own, &[&worktree[..2], &[&common, ".git/x/refs/x=1"]].concat(), ".git/config", true);
    }
    check(&[], &["x/worktrees/w/HEAD=x", "x/worktrees/w/commondir=../.."], "", true);
    // The user's own, where it is not searched before a command.
    let plain = ["node_modules/p/.git/HEAD=x", "node_modules/p/.git/config=[alias]|st = !x"];
    check(&plain, &["node_modules/q=1"], "node_modules/p/.git/config", false);
    check(&plain, &["node_modules/p/.git/config=[alias]|st = !y"], "", true);
    check(&plain, &["node_modules/p/.git/hooks/x!1"], "", true);
}
