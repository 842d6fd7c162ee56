//! The facts that an honest summariser gathers from the transcript of a summary request.
//!
//! Invariants: the request's text is only read; lines that are not understood are skipped. Lists are in the
//! order of the conversation, without duplicates, the oldest first.

use greenroom_kernel::text::first_chars;

/// The maximum number of characters of one gathered line.
const LINE_CHARS_MAX: usize = 240;
/// The goal if none was stated.
const NO_GOAL: &str = "(the user has not said)";
/// The text before the number of steps in a record.
const STEPS: &str = "Steps taken in this turn: ";

/// The facts of one summary request.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    goal: Option<String>,
    is_turn_prefix: bool,
    last_said: Option<String>,
    steps: u64,
    pub(crate) constraints: Vec<String>,
    pub(crate) done: Vec<String>,
    pub(crate) errors: Vec<String>,
    pub(crate) decisions: Vec<String>,
    pub(crate) context: Vec<String>,
    next_steps: Vec<String>,
}

/// The speaker of a piece of the transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Nobody,
    User,
    Assistant,
    Calls,
    Result,
    Record,
}

impl Transcript {
    /// Reads a summary request.
    pub(crate) fn read(request: &str) -> Self {
        let (conversation, rest) = split_tag(request, "conversation");
        let (previous, instruction) = split_tag(&rest, "previous-summary");
        let mut transcript =
            Self { is_turn_prefix: instruction.contains("Original Request"), ..Self::default() };
        transcript.record(&previous);
        transcript.conversation(&conversation);
        transcript
    }

    /// Whether the beginning of a turn is to be summarised, not the history.
    pub(crate) fn is_turn_prefix(&self) -> bool {
        self.is_turn_prefix
    }

    /// Returns the user's goal, from the conversation or from a previous summary.
    pub(crate) fn goal(&self) -> &str {
        self.goal.as_deref().unwrap_or(NO_GOAL)
    }

    /// Returns the number of steps with tool calls in the newest turn, as a line of the record.
    pub(crate) fn steps(&self) -> String {
        format!("{STEPS}{}", self.steps)
    }

    /// Returns the assistant's last statement.
    pub(crate) fn in_progress(&self) -> Vec<String> {
        self.last_said.iter().cloned().collect()
    }

    /// Returns the steps that the assistant announced, or a default if there are none.
    pub(crate) fn next_steps(&self) -> Vec<String> {
        if self.next_steps.is_empty() {
            return vec!["Go on with the goal above, with files not yet read".to_owned()];
        }
        self.next_steps.clone()
    }

    fn conversation(&mut self, text: &str) {
        let mut speaker = Speaker::Nobody;
        let mut is_first_line = false;
        let mut record = String::new();
        for line in text.lines() {
            let tag = speaker_of(line);
            let begins = tag.is_some();
            let (next, said) = match tag {
                Some((next, said)) => {
                    is_first_line = true;
                    (next, said)
                }
                None => (speaker, line),
            };
            if begins {
                match next {
                    Speaker::User => self.steps = 0,
                    Speaker::Calls => self.steps += 1,
                    Speaker::Nobody | Speaker::Assistant | Speaker::Result | Speaker::Record => {}
                }
            }
            if next != Speaker::Record && !record.is_empty() {
                self.record(&std::mem::take(&mut record));
            }
            speaker = next;
            let said = said.trim();
            if said.starts_with("<part ") || said == "</part>" {
                speaker = Speaker::Record;
                continue;
            }
            if said.is_empty() {
                continue;
            }
            match speaker {
                Speaker::User => self.user(said, is_first_line),
                Speaker::Assistant if is_first_line => self.last_said = Some(short(said)),
                Speaker::Calls => self.call(said),
                Speaker::Result => self.result(said, is_first_line),
                Speaker::Record => {
                    record.push_str(said);
                    record.push('\n');
                }
                Speaker::Assistant | Speaker::Nobody => {}
            }
            is_first_line = false;
        }
        self.record(&record);
    }

    fn user(&mut self, line: &str, is_first_line: bool) {
        if is_first_line && self.goal.is_none() {
            self.goal = Some(short(line));
        } else if is_first_line {
            push(&mut self.context, &format!("The user then asked: {line}"));
        }
        let lower = line.to_lowercase();
        if ["always ", "never ", "must ", "don't ", "do not "].iter().any(|word| lower.contains(word)) {
            push(&mut self.constraints, line);
        }
    }

    fn call(&mut self, line: &str) {
        let Some((name, arguments)) = line.split_once('(') else { return };
        let arguments = arguments.trim_end_matches(')');
        let values: Vec<String> =
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments)
                .map(|map| {
                    map.values().filter_map(|value| value.as_str()).map(|text| format!("`{text}`")).collect()
                })
                .unwrap_or_default();
        let what =
            if values.is_empty() { name.to_owned() } else { format!("{name} {}", values.join(" in ")) };
        push(&mut self.done, &what);
    }

    fn result(&mut self, line: &str, is_first_line: bool) {
        let lower = line.to_lowercase();
        if is_first_line && (lower.contains("error") || lower.contains("failed")) {
            push(&mut self.errors, line);
        }
        // Definitions are what a later reader needs most.
        let definitions =
            ["pub fn ", "pub struct ", "pub enum ", "pub trait ", "def ", "class ", "function "];
        if definitions.iter().any(|word| line.contains(word)) && self.context.len() < 200 {
            push(&mut self.context, &format!("`{}`", line.trim_end_matches('{').trim()));
        }
    }

    /// Merges an earlier summary, section by section.
    fn record(&mut self, summary: &str) {
        let mut heading = "";
        for line in summary.lines() {
            let line = line.trim();
            if let Some(title) = line.strip_prefix('#') {
                heading = title.trim_start_matches('#').trim();
                continue;
            }
            let item = line
                .trim_start_matches("- ")
                .trim_start_matches("[x] ")
                .trim_start_matches("[ ] ")
                .trim_start_matches("1. ");
            if item.is_empty() || item == "(none)" || item == "---" {
                continue;
            }
            if let Some(steps) = item.strip_prefix(STEPS) {
                self.steps += steps.parse::<u64>().unwrap_or(0);
                continue;
            }
            match heading {
                "Goal" | "Original Request" if item != NO_GOAL => {
                    self.goal.get_or_insert_with(|| short(item));
                }
                "Constraints & Preferences" => push(&mut self.constraints, item),
                "Done" | "Early Progress" => push(&mut self.done, item),
                "Blocked" => push(&mut self.errors, item),
                "Key Decisions" => push(&mut self.decisions, item),
                "Next Steps" => push(&mut self.next_steps, item),
                "Critical Context" | "Context for the Kept Part" => push(&mut self.context, item),
                _ => {}
            }
        }
    }
}

/// Returns the number of steps that a record names last.
pub fn recorded_steps(record: &str) -> Option<u64> {
    let (_, after) = record.rsplit_once(STEPS)?;
    after.lines().next()?.trim().parse().ok()
}

fn speaker_of(line: &str) -> Option<(Speaker, &str)> {
    let tags = [
        ("[User]:", Speaker::User),
        ("[Assistant]:", Speaker::Assistant),
        ("[Assistant tool calls]:", Speaker::Calls),
        ("[Tool result]", Speaker::Result),
        ("[Record]:", Speaker::Record),
    ];
    let (speaker, rest) =
        tags.iter().find_map(|(tag, speaker)| line.strip_prefix(tag).map(|rest| (*speaker, rest)))?;
    // A result names its tool: `[Tool result] (read): text`.
    let said =
        if speaker == Speaker::Result { rest.split_once(':').map_or(rest, |(_, said)| said) } else { rest };
    Some((speaker, said))
}

/// Returns the content from the first `<tag …>` to the last `</tag`, and the text without it; empty if there
/// is none.
fn split_tag(text: &str, tag: &str) -> (String, String) {
    let open = format!("<{tag}");
    let close = format!("</{tag}");
    let found = text.find(&open).and_then(|start| {
        let inside = start + text[start..].find('>')? + 1;
        let end = inside + text[inside..].rfind(&close)?;
        Some((start, inside, end))
    });
    match found {
        Some((start, inside, end)) => {
            let after = text[end..].find('>').map_or(text.len(), |at| end + at + 1);
            (text[inside..end].to_owned(), format!("{}{}", &text[..start], &text[after..]))
        }
        None => (String::new(), text.to_owned()),
    }
}

fn push(list: &mut Vec<String>, line: &str) {
    let line = short(line);
    // Repeated lines move to the end: they are still relevant.
    list.retain(|known| *known != line);
    list.push(line);
}

fn short(line: &str) -> String {
    first_chars(line, LINE_CHARS_MAX)
}
