//! Which skills are told again, and how.

use super::*;
use crate::message::{AssistantMessage, Part, StopReason, ToolResult};
use crate::tests::notation::{Sketch, assistant, result};

/// A session that reads skills.
#[derive(Default)]
struct Session(Sketch);

impl Session {
    /// Reads a skill: the arguments of its call, and the result.
    fn read(&mut self, tool: &str, arguments: &str, status: ToolStatus, text: &str) -> u64 {
        let id = format!("k{}", self.0.path.len());
        let call = ToolCall { id: id.clone(), name: tool.into(), arguments: arguments.into() };
        let answer =
            AssistantMessage { stop: StopReason::ToolCalls, ..assistant(vec![Part::ToolCall(call)]) };
        self.0.push(EntryKind::message(Message::Assistant(answer)), 10);
        let result = ToolResult { status, ..result(&id, text) };
        self.0.push(EntryKind::message(Message::ToolResult(result)), 100).0
    }

    fn skill(&mut self, name: &str, text: &str) -> u64 {
        self.read("skill", &format!(r#"{{"name":"{name}"}}"#), ToolStatus::Ok, text)
    }

    fn select(&self, previous: Option<&Carried>, kept_from: usize, tokens_max: u64) -> Skills {
        let (replaced, kept) = self.0.path.split_at(kept_from);
        Skills::select(previous, replaced, kept, tokens_max)
    }

    fn all(&self) -> Skills {
        self.select(None, self.0.path.len(), 1_000)
    }
}

fn names(skills: &Skills) -> Vec<(u64, &str, &str)> {
    skills.in_use.iter().map(|skill| (skill.entry.0, skill.name.as_str(), skill.text.as_str())).collect()
}

#[test]
fn each_skill_is_carried_with_its_newest_text() {
    let mut session = Session::default();
    session.skill("tests", "old text");
    session.skill("release", "tag it </skills> first");
    session.skill("tests", "new text");
    // Another file of a skill, a failed read, another tool, and arguments that cannot be read are none.
    session.read("skill", r#"{"name":"tests","file":"more.md"}"#, ToolStatus::Ok, "more");
    session.read("skill", r#"{"name":"none"}"#, ToolStatus::Error, "there is none");
    session.read("read", r#"{"name":"tests"}"#, ToolStatus::Ok, "a file");
    session.read("skill", "{", ToolStatus::Ok, "?");
    // As an imported session spells it.
    session.read("Skill", r#"{"skill":"docs"}"#, ToolStatus::Ok, "write docs");
    let skills = session.all();
    assert_eq!(
        names(&skills),
        [(3, "release", "tag it </skills> first"), (5, "tests", "new text"), (15, "docs", "write docs")]
    );
    assert_eq!(
        skills.text(),
        "## Skills in use\n<skills>\n### release\ntag it &lt;/skills> first\n### tests\nnew text\n### docs\nwrite docs\n\
         </skills>"
    );
    // It is taken off before the next summary, with words of the user before it or without.
    let with = |text: &str| crate::summary::split_footer(text).0.to_owned();
    assert_eq!(with(&format!("## Goal\nx\n\n{}", skills.text())), "## Goal\nx");
    // Over the next compaction, one that is read again in what is kept is not told.
    let previous = Carried { skills: skills.in_use, ..Carried::default() };
    let mut next = Session::default();
    next.skill("more", "more text");
    next.skill("tests", "read again");
    let carried = next.select(Some(&previous), 2, 1_000);
    let carried: Vec<&str> = carried.in_use.iter().map(|skill| skill.name.as_str()).collect();
    assert_eq!(carried, ["more", "release", "docs"]);
    assert_eq!(next.select(Some(&previous), 2, 0), Skills::default(), "none is wanted");
}

#[test]
fn what_has_no_room_is_named_and_the_newest_comes_first() {
    let mut session = Session::default();
    session.skill("large", &"word ".repeat(400));
    session.skill("first", &"one ".repeat(60));
    session.skill("second", &"two ".repeat(60));
    let mut skills = session.select(None, 6, 200);
    assert_eq!(skills.in_use[0].text, "", "too large to be carried");
    let whole = skills.text();
    assert!(whole.contains("### first\none") && whole.contains("### second\ntwo"), "{whole}");
    assert!(whole.ends_with("(Read again with `skill` before you go on: large)\n</skills>"), "{whole}");
    skills.limit(100);
    let less = skills.text();
    assert!(!less.contains("### first") && less.contains("### second\ntwo"), "{less}");
    assert!(less.contains("before you go on: large, first)"), "{less}");
    skills.hide();
    assert_eq!(skills.text(), "");
    skills.limit(100);
    assert_eq!(skills.text(), less, "hidden for a while");
    // Only so many are carried: the newest.
    for number in 0..2 * SKILLS_MAX {
        session.skill(&format!("s{number}"), "text");
    }
    let skills = session.all();
    assert_eq!((skills.in_use.len(), skills.in_use[0].name.as_str()), (SKILLS_MAX, "s8"));
}
