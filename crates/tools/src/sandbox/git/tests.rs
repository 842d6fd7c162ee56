//! The protected files of some workspaces, each drawn as a list of files.

use super::*;

/// Makes a workspace: `a/` is a folder, `a=text` a file, `a->b` a link.
fn workspace(entries: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for entry in entries {
        let make = |path: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("in the folder")).expect("folders are made");
            path
        };
        if let Some((path, target)) = entry.split_once("->") {
            std::os::unix::fs::symlink(target, make(path)).expect("links are made");
        } else if let Some((path, text)) = entry.split_once('=') {
            std::fs::write(make(path), text).expect("files are made");
        } else {
            std::fs::create_dir_all(make(entry)).expect("folders are made");
        }
    }
    folder
}

fn check(entries: &[&str], existing: &str, files: &str, folders: &str, forbidden: &str) {
    let workspace = workspace(entries);
    let root = workspace.path().canonicalize().expect("it exists");
    let found = protected(&root, None);
    let drawn = |paths: &[PathBuf]| {
        let mut names: Vec<String> =
            paths.iter().map(|path| path.strip_prefix(&root).unwrap_or(path).display().to_string()).collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(drawn(&found.existing), existing, "{entries:?}");
    assert_eq!(drawn(&found.missing_files), files, "{entries:?}");
    assert_eq!(drawn(&found.missing_folders), folders, "{entries:?}");
    assert_eq!(drawn(&found.forbidden), forbidden, "{entries:?}");
    assert_eq!(found.writable, Vec::<PathBuf>::new(), "{entries:?}");
}

#[test]
fn what_is_protected() {
    let swept = ".git/commondir .git/config.worktree";
    check(&["a=1"], "", "", ".git greenroom.yaml", "");
    check(
        &["greenroom.yaml=x", ".git/config=", ".git/hooks/"],
        ".git/config .git/hooks greenroom.yaml",
        "",
        "",
        swept,
    );
    check(&[".git/HEAD=x"], "", ".git/config", ".git/hooks greenroom.yaml", swept);
    check(
        &[".git/commondir=x", ".git/config=", ".git/hooks/"],
        ".git/commondir .git/config .git/hooks",
        "",
        "greenroom.yaml",
        ".git/config.worktree",
    );
    // A folder of hooks of its own, and a file that is included.
    check(
        &[
            ".git/config=[core]\n hooksPath = .husky\n[include]\n path = ../extra",
            ".git/hooks/",
            ".husky/x=1",
            "extra=1",
        ],
        ".git/config .git/hooks .husky extra",
        "",
        "greenroom.yaml",
        swept,
    );
    // A link could be replaced, so what it is in stays as it is.
    check(&[".git/config=", ".git/hooks->../h", "h/"], ".git .git/config", "", "greenroom.yaml", swept);
    // Submodules, worktrees, and nested repositories.
    check(
        &[
            ".git/config=", ".git/hooks/", ".git/modules/a/b/HEAD=x", ".git/modules/a/b/objects/",
            ".git/modules/a/b/refs/", ".git/worktrees/w/HEAD=x", ".git/worktrees/w/commondir=../..\n",
            ".git/worktrees/w/gitdir=x", "s/.git=gitdir: ../.git/modules/a/b",
        ],
        ".git/config .git/hooks .git/worktrees/w/commondir .git/worktrees/w/gitdir s/.git",
        ".git/modules/a/b/config",
        ".git/modules/a/b/hooks greenroom.yaml",
        &format!(
            "{swept} .git/modules/a/b/commondir .git/modules/a/b/config.worktree .git/worktrees/w/config.worktree"
        ),
    );
    check(
        &["x/y/.git/config=", "x/y/.git/hooks/", "node_modules/z/.git/config=", "x/greenroom.yaml=1"],
        "x/greenroom.yaml x/y/.git/config x/y/.git/hooks",
        "",
        ".git greenroom.yaml",
        "x/y/.git/commondir x/y/.git/config.worktree",
    );
}

/// Checks which folder of hooks is protected in a workspace with this configuration of git, besides its own.
fn check_hooks(configuration: &str, others: &[&str], hooks: &str) {
    let own = format!(".git/config={configuration}");
    let entries =
        [&[&*own, ".git/hooks/", ".git/commondir=", ".git/config.worktree=", "greenroom.yaml="], others];
    let workspace = workspace(&entries.concat());
    let root = workspace.path().canonicalize().expect("it exists");
    let found = protected(&root, None);
    let places = [found.missing_folders, found.existing].concat();
    let names = places.iter().map(|path| path.strip_prefix(&root).unwrap_or(path).display().to_string());
    let names: Vec<String> = names.filter(|name| name.contains("own")).collect();
    assert_eq!(names.join(" "), hooks, "{configuration:?} {others:?}");
}

#[test]
fn a_configuration_is_read_as_git_reads_it() {
    for written in [
        "[core]\n hooksPath = own",
        "[core]\n hooksPath = own # what is shared",
        "[core]\n hooksPath = own;x",
        "[core]\n hooksPath = o\"w\"n\n",
        "[core]\n hooksPath = o\\\nwn",
        "[core]\r\n hooksPath = \\\r\n own\r\n",
        "[core] bare # x = \\\n hooksPath = own",
        "\u{feff}[CORE]HooksPath=own",
        "[x \"]\"]\n[core]\n hooksPath = own",
    ] {
        check_hooks(written, &[], "own");
    }
    // In a file that is included by one that is included.
    let include = "[include]\n path = ../a";
    check_hooks(include, &["a=[includeIf \"x]\"] path = b", "b=[core]\n hooksPath = own"], "own");
    check_hooks(include, &["a->b", "b=[core]\n hooksPath = own\n[include]\n path = b"], "own");
    // In a nested repository, what is above it; in that of a submodule, what is in the submodule.
    check_hooks("", &["n/.git/config=[core]\n hooksPath = ../own"], "own");
    let submodule = "[core]\n worktree = ../../../s\n hooksPath = own";
    let submodule = format!(".git/modules/s/config={submodule}");
    let parts = [".git/modules/s/HEAD=", ".git/modules/s/objects/", ".git/modules/s/refs/", "s/own/x="];
    check_hooks("", &[&[&*submodule], &parts[..]].concat(), "s/own");
}

#[test]
fn a_configuration_in_another_encoding_is_read() {
    let workspace = workspace(&[".git/hooks/"]);
    let root = workspace.path().canonicalize().expect("it exists");
    let text = b"[user]\n name = J\xfcrgen\n[core]\n hooksPath = own\n";
    std::fs::write(root.join(".git/config"), text).expect("files are made");
    assert!(protected(&root, None).missing_folders.contains(&root.join("own")));
}

/// The user's own configuration may be in the workspace, and name what is there.
#[test]
fn the_user_s_own_configuration_counts() {
    let place = workspace(&[
        ".gitconfig->dot/gitconfig",
        "dot/.git/config=",
        "dot/gitconfig=[include]\n path = ~/dot/extra\n[core]\n hooksPath = ~/dot/hooks",
    ]);
    let home = place.path().canonicalize().expect("it exists");
    let root = home.join("dot");
    let found = protected(&root, Some(&home));
    assert!(found.existing.contains(&root.join("gitconfig")), "{found:?}");
    assert!(found.missing_files.contains(&root.join("extra")), "{found:?}");
    assert!(found.missing_folders.contains(&root.join("hooks")), "{found:?}");
}

/// git takes a folder for a repository without a `.git`, too.
#[test]
fn bare_repositories_are_protected() {
    let (swept, missing) = ("n/commondir n/config.worktree", ".git greenroom.yaml n/hooks");
    check(&["n/HEAD=x", "n/objects/", "n/refs/", "n/config="], "n/config", "", missing, swept);
    check(&["n/HEAD->x", "n/objects->x", "n/refs/"], "", "n/config", missing, swept);
    check(
        &["n/HEAD=x", "n/commondir=x", "n/config="],
        "n/commondir n/config",
        "",
        missing,
        "n/config.worktree",
    );
    check(&["n/HEAD=x", "n/objects/", "n/config=", "m/refs/"], "", "", ".git greenroom.yaml", "");
}

/// The main repository of a worktree can be changed, if it names the worktree; no other folder can.
#[test]
fn a_worktree_belongs_to_its_repository() {
    let place =
        workspace(&["main/.git/HEAD=x", "main/.git/config=", "main/.git/hooks/", "ws/a=1", "other/HEAD=x"]);
    let root = place.path().canonicalize().expect("it exists");
    let of_worktree = root.join("main/.git/worktrees/ws");
    std::fs::create_dir_all(&of_worktree).expect("folders are made");
    let (git, main) = (root.join("ws/.git"), root.join("main/.git"));
    let write = |path: &Path, text: String| std::fs::write(path, text).expect("files are made");
    for (back, own, expect) in [
        (git.clone(), of_worktree.clone(), vec![main.clone()]),
        (root.join("elsewhere/.git"), of_worktree.clone(), vec![]),
        (git.clone(), root.join("other"), vec![]),
    ] {
        write(&of_worktree.join("gitdir"), format!("{}\n", back.display()));
        write(&git, format!("gitdir: {}\n", own.display()));
        let found = protected(&root.join("ws"), None);
        assert!(found.existing.contains(&git));
        assert_eq!(found.existing.contains(&main.join("hooks")), !expect.is_empty());
        assert_eq!(found.writable, expect, "{own:?} {back:?}");
    }
}

#[test]
fn what_is_not_searched_is_named() {
    let deep = "a/b/c/d/e/f/g/h/.git/config=";
    let workspace = workspace(&[deep, "x/1=", "x/2=", "y/z/3=", "node_modules/m/.git/config="]);
    let root = workspace.path().canonicalize().expect("it exists");
    let found = |entries_max| {
        let mut found = Protected::default();
        found.search(&root, entries_max);
        let names = |paths: &[PathBuf]| {
            let mut names: Vec<String> = paths
                .iter()
                .map(|path| path.strip_prefix(&root).unwrap_or(path).display().to_string())
                .collect();
            names.sort();
            names.join(" ")
        };
        (names(&found.repositories), names(&found.unexamined))
    };
    assert_eq!(found(1_000), ("a/b/c/d/e/f/g/h/.git".to_owned(), String::new()));
    // The root has four entries.
    assert_eq!(found(4), (String::new(), "a x y".to_owned()));
    let (repositories, unexamined) = found(7);
    assert!(
        repositories.is_empty() && !unexamined.is_empty() && !unexamined.contains("node"),
        "{unexamined}"
    );
    // Many folders are named by the ones of the workspace that they are in.
    let many: Vec<String> = (0..=UNEXAMINED_MAX).map(|n| format!("many/{n}/")).collect();
    let workspace = self::workspace(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let root = workspace.path().canonicalize().expect("it exists");
    assert_eq!(visit(&root, 2, |_, _| {}), [root.join("many")]);
}
