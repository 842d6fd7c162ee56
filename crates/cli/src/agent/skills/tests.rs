//! Which folders are skills, the list of them, and reading them.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::Skills;
use crate::config::Config;
use crate::config::surroundings::Surroundings;
use crate::config::trusted::FolderTrust;

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
    std::fs::write(path, text).expect("it is written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
}

struct Fixture {
    _dir: tempfile::TempDir,
    root: PathBuf,
    skills: Skills,
}

/// The user's skills and those of a project, which the user trusts.
fn trusted(root: &Path) -> Skills {
    let work = root.join("work");
    std::fs::create_dir_all(&work).expect("it is made");
    let config = Config { trusted_folders: vec![work.display().to_string()], ..Config::default() };
    let trust = FolderTrust::of(&config, &work, &Surroundings::here());
    Skills::new(Some(&root.join("own")), Some((&work, trust)))
}

fn place() -> Fixture {
    let dir = tempfile::tempdir().expect("a folder");
    let root = dir.path().canonicalize().expect("its path");
    let skills = trusted(&root);
    Fixture { _dir: dir, root, skills }
}

#[test]
fn skills_are_offered_by_name_and_read_when_needed() {
    let Fixture { root, skills, _dir } = place();
    assert_eq!(skills.offer(), "");
    write(
        &root.join("own/release/SKILL.md"),
        "---\nname: release\ndescription: How to\n  release.\nlicense: x\n---\n\n# Do\nTag it.\n",
    );
    write(&root.join("own/release/notes/form.md"), "FORM");
    write(
        &root.join("work/.claude/skills/review/SKILL.md"),
        "---\ndescription: \"How to review: well.\"\n---\nLook.\n",
    );
    // A project's skill does not replace one of the user's.
    write(&root.join("work/.agents/skills/release/SKILL.md"), "---\ndescription: theirs\n---\nEVIL\n");
    let offer = skills.offer();
    assert!(offer.ends_with("- release: How to release.\n- review: How to review: well."), "{offer}");
    assert!(!offer.contains("Tag it"), "{offer}");
    let read = skills.read("release", None).expect("its text");
    assert!(read.starts_with("# Do\nTag it.") && read.contains("own/release"), "{read}");
    assert!(skills.read("release", Some("notes/form.md")).expect("its file").starts_with("FORM"));
    assert!(skills.read("review", None).expect("its text").starts_with("Look."));
    // A new skill appears at once, and a removed one disappears.
    write(&root.join("own/new/SKILL.md"), "---\ndescription: new\n---\n");
    assert!(skills.offer().contains("- new: new"));
    std::fs::remove_dir_all(root.join("own/new")).expect("it is removed");
    assert!(!skills.offer().contains("- new: new"));
}

#[test]
fn what_is_no_skill_is_not_offered_and_nothing_beside_it_is_read() {
    let Fixture { root, skills, _dir } = place();
    for (name, text) in [
        ("no-head", "Just text."),
        ("open-head", "---\ndescription: x\n"),
        ("no-description", "---\nname: a\n---\n"),
        ("bad-name", "---\nname: a b\ndescription: x\n---\n"),
        ("bad-yaml", "---\ndescription: [\n---\n"),
    ] {
        write(&root.join("own").join(name).join("SKILL.md"), text);
    }
    write(&root.join("own/open/SKILL.md"), "---\ndescription: x\n---\n");
    std::fs::set_permissions(root.join("own/open/SKILL.md"), std::fs::Permissions::from_mode(0o666))
        .expect("open");
    std::fs::create_dir_all(root.join("own/folder/SKILL.md")).expect("a folder in its place");
    assert_eq!(skills.offer(), "");
    let warnings = skills.warnings();
    let reasons = [
        ("bad-name", "its name \"a b\""),
        ("bad-yaml", "its front matter: "),
        ("folder", "not a file"),
        ("no-description", "its front matter has no description"),
        ("no-head", "does not begin with front matter"),
    ];
    for ((name, reason), warning) in reasons.into_iter().zip(&warnings) {
        assert!(
            warning.contains(&format!("own/{name}/SKILL.md is not listed")) && warning.contains(reason),
            "{warning}"
        );
    }
    assert_eq!(warnings[5..], ["2 more skills are not listed"]);
    write(&root.join("own/good/SKILL.md"), "---\ndescription: x\n---\nGOOD");
    write(&root.join("secret"), "SECRET");
    symlink(root.join("secret"), root.join("own/good/link")).expect("a link");
    for file in ["../../secret", "link", "/etc/passwd", "none", ""] {
        let refused = skills.read("good", Some(file)).expect_err(file);
        assert!(refused.contains("of the skill good"), "{refused}");
    }
    let unknown = skills.read("nothing", None).expect_err("it is not there");
    assert!(unknown.contains("available skills: good"), "{unknown}");
}

#[test]
fn a_projects_skills_are_in_the_project() {
    let Fixture { root, skills: _, _dir } = place();
    write(&root.join("elsewhere/secret/SKILL.md"), "---\ndescription: x\n---\nSECRET");
    write(&root.join("work/.git/hooks/SKILL.md"), "---\ndescription: x\n---\n");
    write(&root.join("work/.git/config"), "TOKEN");
    write(&root.join("work/shared/inside/SKILL.md"), "---\ndescription: inside\n---\nINSIDE");
    write(&root.join("work/SKILL.md"), "---\nname: all\ndescription: all\n---\n");
    let folder = root.join("work/.claude/skills");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, target) in [
        ("out", root.join("elsewhere/secret")),
        ("git", root.join("work/.git/hooks")),
        ("inside", root.join("work/shared/inside")),
        ("whole", root.join("work")),
    ] {
        symlink(target, folder.join(name)).expect("a link");
    }
    // The user's own skills may be links to anywhere.
    std::fs::create_dir_all(root.join("own")).expect("a folder");
    symlink(root.join("elsewhere/secret"), root.join("own/mine")).expect("a link");
    let skills = trusted(&root);
    assert!(skills.offer().ends_with("\n- all: all\n- inside: inside\n- mine: x"), "{}", skills.offer());
    let warnings = skills.warnings().join("\n");
    assert!(
        warnings.contains("skills/out/SKILL.md is not listed: it is a link out of the project"),
        "{warnings}"
    );
    assert!(warnings.contains("skills/git/SKILL.md is not listed: it is a link into"), "{warnings}");
    assert!(skills.read("inside", None).expect("its text").starts_with("INSIDE"));
    assert!(skills.read("mine", None).expect("its text").starts_with("SECRET"));
    let refused = skills.read("all", Some(".git/config")).expect_err("it is not the project's");
    assert!(refused.contains("version control"), "{refused}");
}
