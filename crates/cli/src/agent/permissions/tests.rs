//! The mode and the tools at the start, and rules that were added with the answer "always".

use std::os::unix::fs::PermissionsExt as _;

use greenroom::permissions::{Mode, Policy};

use super::remembered::{self, FILE};
use super::{Offered, mode_of, offered};
use crate::args::{Answers, ModelArgs};

fn args(answers: Answers, change: impl FnOnce(&mut ModelArgs)) -> ModelArgs {
    let mut args = ModelArgs { answers, ..ModelArgs::bare() };
    change(&mut args);
    args
}

#[test]
fn the_mode_and_the_tools_at_the_start() {
    use Answers::{Client, Nobody, Person};
    type Change = fn(&mut ModelArgs);
    let none: Change = |_| {};
    let write: Change = |args| args.allow_write = true;
    let shell: Change = |args| args.allow_shell = true;
    let (edits, everything): (Change, Change) =
        (|args| args.mode = Some(Mode::AcceptEdits), |args| args.mode = Some(Mode::Everything));
    type Row = (Answers, Change, Option<Mode>, &'static [&'static str], Mode, Offered);
    let rows: &[Row] = &[
        (Person, none, None, &[], Mode::Ask, Offered::All),
        (Person, none, Some(Mode::ReadOnly), &[], Mode::ReadOnly, Offered::All),
        (Person, write, None, &[], Mode::AcceptEdits, Offered::Files),
        (Person, shell, Some(Mode::Ask), &[], Mode::Everything, Offered::All),
        (Person, edits, Some(Mode::ReadOnly), &[], Mode::AcceptEdits, Offered::All),
        (Client, none, None, &[], Mode::ReadOnly, Offered::Reading),
        (Client, none, Some(Mode::Ask), &[], Mode::Ask, Offered::All),
        (Client, none, None, &["bash(ls)"], Mode::Ask, Offered::All),
        (Client, shell, None, &[], Mode::Everything, Offered::All),
        (Nobody, none, None, &[], Mode::ReadOnly, Offered::Reading),
        (Nobody, none, Some(Mode::Ask), &[], Mode::Ask, Offered::Reading),
        (Nobody, none, None, &["bash(ls)"], Mode::Ask, Offered::All),
        (Nobody, none, None, &["write(src/**)"], Mode::Ask, Offered::Files),
        (Nobody, none, None, &["read(/etc/**)"], Mode::Ask, Offered::Reading),
        (Nobody, edits, None, &[], Mode::AcceptEdits, Offered::Files),
        (Nobody, everything, None, &[], Mode::Everything, Offered::All),
        (Nobody, write, None, &[], Mode::AcceptEdits, Offered::Files),
        (Nobody, shell, None, &[], Mode::Everything, Offered::All),
    ];
    for (number, (answers, change, configured, rules, mode, tools)) in rows.iter().enumerate() {
        let args = args(*answers, change);
        let found = mode_of(&args, *configured, !rules.is_empty());
        let mut policy = Policy::new(found, "/srv");
        for rule in *rules {
            policy.add(greenroom::permissions::Effect::Allow, rule, "the test").expect("a valid rule");
        }
        assert_eq!((found, offered(&args, &policy)), (*mode, *tools), "row {number}");
    }
}

#[test]
fn answers_are_remembered_by_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let own = dir.path().join("greenroom");
    let here = remembered::Answers::new(&own, "/srv/a".as_ref());
    let elsewhere = remembered::Answers::new(&own, "/srv/b".as_ref());
    assert_eq!(here.read(), Ok(vec![]));
    let rules = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    here.add(&rules(&["bash(git commit *)", "write(a 'b': c/**)"])).expect("written");
    here.add(&rules(&["bash(git commit *)", "refund"])).expect("written");
    elsewhere.add(&rules(&["bash(ls)"])).expect("written");
    assert_eq!(here.read(), Ok(rules(&["bash(git commit *)", "write(a 'b': c/**)", "refund"])));
    assert_eq!(elsewhere.read(), Ok(rules(&["bash(ls)"])));
    let mode = std::fs::metadata(own.join(FILE)).expect("the file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(&own).expect("the folder").count(), 1, "nothing else is left");

    // Those that are added at the same time are all kept.
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let elsewhere = &elsewhere;
            scope.spawn(move || {
                for number in 0..10 {
                    elsewhere.add(&[format!("tool_{writer}_{number}")]).expect("written");
                }
            });
        }
    });
    assert_eq!(elsewhere.read().expect("the rules").len(), 41);

    // What was edited badly is an error, and is not overwritten.
    std::fs::write(own.join(FILE), "allow: [x").expect("written");
    assert!(here.read().is_err_and(|problem| problem.contains(FILE)));
    assert!(here.add(&rules(&["refund"])).is_err());
    assert_eq!(std::fs::read_to_string(own.join(FILE)).expect("the file"), "allow: [x");
    std::fs::write(own.join(FILE), "# nothing left\n").expect("written");
    assert_eq!(here.read(), Ok(vec![]));
}
