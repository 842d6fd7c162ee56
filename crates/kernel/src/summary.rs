//! Summary requests, the acceptance of answers, and the resulting text in the context.
//!
//! Invariants: a transcript is data, so text in it that looks like our tags or roles is escaped before it is
//! sent, and so is a summary before it is shown to a model; an answer that is empty, cut off, too long, calls
//! tools or lacks the requested headings is never accepted; and the footer, the active request and the counts
//! are written by this code, never by a model.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::entry::{Entry, EntryKind};
use crate::files::FileOps;
use crate::message::{AssistantMessage, Block, Message, Part, StopReason};
use crate::plan::Plan;
use crate::settings::{CompactionSettings, MESSAGES_PLACE};
use crate::size::classes;
use crate::text::elide_middle;

mod footer;

#[cfg(test)]
mod tests;

use footer::append_footer;
pub(crate) use footer::split_footer;
pub use footer::without_footer;
pub(crate) use footer::{with_facts, without_request};

/// The minimum room, in tokens, in which a summary is worth requesting.
pub(crate) const SUMMARY_TOKENS_MIN: u64 = 64;
/// The summariser's system prompt.
pub const SYSTEM: &str = include_str!("../prompts/system.md");
const HISTORY: &str = include_str!("../prompts/history.md");
const UPDATE: &str = include_str!("../prompts/update.md");
const PREFIX: &str = include_str!("../prompts/prefix.md");
const MERGE: &str = include_str!("../prompts/merge.md");
const BRANCH: &str = include_str!("../prompts/branch.md");
/// As [`UPDATE`], with a user's own prompt.
const OWN_UPDATE: &str = include_str!("../prompts/own_update.md");
/// As [`PREFIX`], with a user's own prompt, which defines the form of the record.
const OWN_PREFIX: &str = include_str!("../prompts/own_prefix.md");

const HISTORY_HEADINGS: [&str; 6] =
    ["Goal", "Constraints & Preferences", "Progress", "Key Decisions", "Next Steps", "Critical Context"];
const HISTORY_HEADINGS_NEEDED: usize = 4;
const PREFIX_HEADINGS: [&str; 3] = ["Original Request", "Early Progress", "Context for the Kept Part"];
const PREFIX_HEADINGS_NEEDED: usize = 2;

/// The start of the line that represents messages without a summary.
const CUT_NOTE: &str = "[Compacted ";
/// The maximum length of one tool result in a transcript, in characters.
const TOOL_RESULT_CHARS: usize = 2_000;
/// Our own tags; data that looks like one of them is escaped.
const TAGS: [&str; 11] = [
    "conversation", "previous-summary", "summary", "part", "read-files", "modified-files", "active-request",
    "facts", "user-words", "skills", "system",
];
/// The role tags of a transcript; a line of data that begins like one is escaped.
const ROLES: [&str; 5] = ["[User]", "[Assistant]", "[Assistant tool calls]", "[Tool result]", "[Record]"];

/// What is summarised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SummaryKind {
    /// The history before the kept part, or before the split turn.
    History,
    /// The beginning of a split turn.
    TurnPrefix,
    /// A branch that was left.
    Branch,
}

impl SummaryKind {
    fn headings(self) -> (&'static [&'static str], usize) {
        match self {
            Self::History | Self::Branch => (&HISTORY_HEADINGS, HISTORY_HEADINGS_NEEDED),
            Self::TurnPrefix => (&PREFIX_HEADINGS, PREFIX_HEADINGS_NEEDED),
        }
    }
}

/// The style of summary requests: the same for all requests of one compaction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Style {
    /// Topic for the summary to focus on.
    pub focus: Option<String>,
    /// The user's additions to the instruction, built-in or own.
    pub instructions: Option<String>,
    /// Replaces the instruction; `{messages}` in it is where the transcript goes.
    pub prompt: Option<String>,
}

impl Style {
    /// Returns the style that the settings and a focus define.
    pub(crate) fn new(settings: &CompactionSettings, focus: Option<String>) -> Self {
        let (prompt, instructions) = (&settings.compact_prompt, &settings.compact_instructions);
        Self { focus, instructions: instructions.clone(), prompt: prompt.clone() }
    }
}

/// Returns the output limit of a summary request, in tokens, for a summary of at most `cap_tokens`: a quarter
/// more, so that a summary that is slightly too long is complete, and rejected for its length and not as cut
/// off.
pub fn output_tokens(cap_tokens: u64) -> u64 {
    cap_tokens + cap_tokens / 4
}

/// Returns the largest cap, in tokens, with which a summary request stays within this output limit.
pub(crate) fn cap_within(output_tokens_max: u64) -> u64 {
    output_tokens_max - output_tokens_max.div_ceil(5)
}

/// Returns the user message of one summary request.
///
/// `transcript` is [`transcript`] text; `previous` is the body of the previous summary, to be merged.
pub fn request_text(
    kind: SummaryKind,
    transcript: &str,
    previous: Option<&str>,
    style: &Style,
    cap_tokens: u64,
) -> String {
    let mut text = String::new();
    let conversation = format!("<conversation>\n{transcript}\n</conversation>");
    let previous = previous
        .map(|summary| format!("<previous-summary>\n{}\n</previous-summary>", escape_tags(summary)))
        .filter(|_| kind == SummaryKind::History);
    if let Some(prompt) = &style.prompt {
        let data = match &previous {
            Some(previous) => format!("{previous}\n\n{conversation}"),
            None => conversation,
        };
        let notes = [previous.map(|_| OWN_UPDATE), own_note(kind)];
        text = own_request(prompt, &data, &notes, cap_tokens);
    } else {
        text.push_str(&conversation);
        if let Some(previous) = &previous {
            let _ = write!(text, "\n\n{previous}\n\n{UPDATE}");
        }
        text.push_str("\n\n");
        if kind == SummaryKind::Branch {
            let _ = writeln!(text, "{BRANCH}");
        }
        text.push_str(&instruction(kind, cap_tokens));
    }
    push_additions(&mut text, style);
    text
}

/// Returns the user message of a request that merges the summaries of consecutive parts.
pub fn merge_text(kind: SummaryKind, parts: &[String], style: &Style, cap_tokens: u64) -> String {
    let mut data = String::from("<conversation>\n");
    for (index, part) in parts.iter().enumerate() {
        let _ = writeln!(data, "<part number=\"{}\">\n{}\n</part>", index + 1, escape_tags(part));
    }
    data.push_str("</conversation>");
    let mut text = match &style.prompt {
        Some(prompt) => own_request(prompt, &data, &[Some(MERGE), own_note(kind)], cap_tokens),
        None => format!("{data}\n\n{MERGE}\n{}", instruction(kind, cap_tokens)),
    };
    push_additions(&mut text, style);
    text
}

fn instruction(kind: SummaryKind, cap_tokens: u64) -> String {
    let template = match kind {
        SummaryKind::History | SummaryKind::Branch => HISTORY,
        SummaryKind::TurnPrefix => PREFIX,
    };
    template.replace("{cap}", &wanted_tokens(cap_tokens).to_string())
}

/// Returns the instruction for a provider that compacts the conversation itself.
pub(crate) fn native_instruction(style: &Style, cap_tokens: u64) -> String {
    let mut text = match &style.prompt {
        Some(prompt) => own_request(prompt, "(the conversation above)", &[], cap_tokens),
        None => instruction(SummaryKind::History, cap_tokens),
    };
    text.push_str("\n\nDo NOT call tools: write the record as text.");
    push_additions(&mut text, style);
    text
}

/// Returns what a user's own prompt cannot know about these data.
fn own_note(kind: SummaryKind) -> Option<&'static str> {
    match kind {
        SummaryKind::History => None,
        SummaryKind::TurnPrefix => Some(OWN_PREFIX),
        SummaryKind::Branch => Some(BRANCH),
    }
}

/// Returns a request with a user's own prompt: the data, and the necessary notes about them, whatever the
/// prompt says.
fn own_request(prompt: &str, data: &str, notes: &[Option<&str>], cap_tokens: u64) -> String {
    let mut text = if prompt.contains(MESSAGES_PLACE) {
        prompt.replace(MESSAGES_PLACE, data)
    } else {
        format!("{data}\n\n{prompt}")
    };
    for note in notes.iter().flatten() {
        let _ = write!(text, "\n\n{}", note.trim_end());
    }
    let _ = write!(text, "\n\nStay within {} tokens. Write only the record.", wanted_tokens(cap_tokens));
    text
}

/// Returns the length to request. A model does not count while it writes, so a fifth of the cap is reserved
/// for excess.
fn wanted_tokens(cap_tokens: u64) -> u64 {
    cap_tokens - cap_tokens / 5
}

/// Appends what the user, a hook or the settings add to the instruction.
fn push_additions(text: &mut String, style: &Style) {
    if let Some(instructions) = style.instructions.as_deref().map(str::trim) {
        let _ = write!(text, "\n\n{instructions}");
    }
    if let Some(focus) = style.focus.as_deref().map(str::trim).filter(|focus| !focus.is_empty()) {
        let _ = write!(text, "\n\nAttend above all to this: {focus}");
    }
}

/// Returns the transcript of these entries, one piece per message, so that it can be split between messages.
pub fn transcript(entries: &[Arc<Entry>]) -> Vec<String> {
    entries.iter().filter_map(|entry| entry_transcript(&entry.kind)).collect()
}

fn entry_transcript(kind: &EntryKind) -> Option<String> {
    if let EntryKind::Message { message, .. } = kind {
        message_transcript(message)
    } else if let EntryKind::BranchSummary { summary, .. } = kind {
        Some(format!("[Record]: {}", escape_tags(summary)))
    } else if let EntryKind::Shell(shell) = kind {
        let output = elide_middle(&shell.output, TOOL_RESULT_CHARS);
        (!shell.excluded)
            .then(|| format!("[User]: I ran `{}`:\n{}", escape_tags(&shell.command), escape_tags(&output)))
    } else if let EntryKind::Custom(custom) = kind {
        Some(format!("[User]: {}", blocks_transcript(&custom.content)))
    } else {
        None
    }
}

fn message_transcript(message: &Message) -> Option<String> {
    match message {
        Message::User(blocks) => Some(format!("[User]: {}", blocks_transcript(blocks))),
        Message::ToolResult(result) => {
            let text = elide_middle(&crate::message::blocks_text(&result.content), TOOL_RESULT_CHARS);
            let images = result.content.iter().filter(|block| matches!(block, Block::Image(_))).count();
            let images = if images > 0 { format!(" [{images} images]") } else { String::new() };
            Some(format!(
                "[Tool result] ({}): {}{images}",
                escape_tags(&result.tool_name),
                escape_tags(&text)
            ))
        }
        Message::Assistant(assistant) => {
            let mut text = String::new();
            let mut calls = String::new();
            for part in &assistant.content {
                match part {
                    Part::Text(said) => text.push_str(said),
                    Part::ToolCall(call) => {
                        let arguments = elide_middle(&call.arguments, TOOL_RESULT_CHARS);
                        let _ = write!(calls, "\n  {}({})", escape_tags(&call.name), escape_tags(&arguments));
                    }
                    // Reasoning led to the text and the actions; it is not needed beside them.
                    Part::Reasoning(_) | Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } => {}
                }
            }
            let mut out = String::new();
            if !text.trim().is_empty() {
                let _ = write!(out, "[Assistant]: {}", escape_tags(text.trim()));
            }
            if !calls.is_empty() {
                let separator = if out.is_empty() { "" } else { "\n" };
                let _ = write!(out, "{separator}[Assistant tool calls]:{calls}");
            }
            (!out.is_empty()).then_some(out)
        }
    }
}

fn blocks_transcript(blocks: &[Block]) -> String {
    let texts: Vec<Cow<'_, str>> = blocks
        .iter()
        .map(|block| match block {
            Block::Text(text) => Cow::Borrowed(text.as_str()),
            Block::Image(image) => Cow::Owned(format!("[image, {}]", image.media_type)),
            Block::Native(_) => Cow::Borrowed(""),
        })
        .collect();
    // Joined first: a tag in two halves is a tag.
    escape_tags(&texts.join("\n"))
}

/// Joins transcript pieces into as few texts of at most `budget_tokens` as possible, in order. A larger piece
/// is split; nothing is left out. The text after a split is escaped again, since it may now begin a text.
pub fn chunks(pieces: &[String], budget_tokens: u64) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut current = String::new();
    let mut current_tokens = 0;
    for piece in pieces {
        let mut rest: &str = piece;
        while !rest.is_empty() {
            let (part, after) = split_at_tokens(rest, budget_tokens);
            let part =
                if rest.len() < piece.len() { Cow::Owned(escape_tags(part)) } else { Cow::Borrowed(part) };
            let tokens = classes::tokens(&part) + 1;
            if current_tokens + tokens > budget_tokens && !current.is_empty() {
                out.push(std::mem::take(&mut current));
                current_tokens = 0;
            }
            if !current.is_empty() {
                current.push_str("\n\n");
            }
            current.push_str(&part);
            current_tokens += tokens;
            rest = after;
        }
    }
    if !current.is_empty() {
        out.push(current);
    }
    out
}

/// Returns the longest prefix of at most `budget_tokens`, at the end of a line if one is near, and the rest.
fn split_at_tokens(text: &str, budget_tokens: u64) -> (&str, &str) {
    // No text has more than twelve bytes per token, so this much is enough to decide without counting a long
    // text.
    let probe =
        text.floor_char_boundary(usize::try_from(budget_tokens.saturating_mul(12)).unwrap_or(usize::MAX));
    let fits = |text: &str| classes::tokens(text) <= budget_tokens;
    if fits(&text[..probe]) && (probe == text.len() || fits(text)) {
        return (text, "");
    }
    // No byte is two tokens, so this many bytes always fit; grow while they do.
    let mut end = text.floor_char_boundary(usize::try_from(budget_tokens / 2).unwrap_or(usize::MAX).max(4));
    let mut step = end;
    while step > 8 {
        let next = text.floor_char_boundary(end.saturating_add(step));
        if next < text.len() && fits(&text[..next]) {
            end = next;
        } else {
            step /= 2;
        }
    }
    let line = text[..end].rfind('\n').map(|at| at + 1).filter(|at| *at > end / 2);
    text.split_at(line.unwrap_or(end))
}

/// Why a summariser's answer is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The answer has no text.
    #[error("the summary is empty")]
    Empty,
    /// It ended at the output limit.
    #[error("the summary was cut off at the output limit")]
    CutOff,
    /// It was interrupted, or failed.
    #[error("the summary is incomplete")]
    Incomplete,
    /// The provider's content filter ended it.
    #[error("the provider's content filter refused the summary")]
    Filtered,
    /// The answer calls tools.
    #[error("the summariser called tools instead of answering")]
    ToolCalls,
    /// It is longer than its cap.
    #[error("the summary has {tokens} tokens, and at most {cap} are allowed")]
    TooLong {
        /// Its size by our estimate.
        tokens: u64,
        /// The limit, in tokens.
        cap: u64,
    },
    /// It has headings, and nothing below them.
    #[error("the summary has headings without content")]
    Hollow,
    /// It does not have the requested form.
    #[error("the summary has {found} of the required headings and needs at least {needed}")]
    Headings {
        /// The number of headings found.
        found: usize,
        /// The number of headings needed.
        needed: usize,
        /// The missing headings.
        missing: Vec<&'static str>,
    },
}

impl Rejected {
    /// Returns the correction for the summariser when it is asked again; `None` if it can do nothing about
    /// it.
    pub(crate) fn correction(&self) -> Option<String> {
        match self {
            Self::Empty => Some("Your last answer was empty. Write the record now, as text.".to_owned()),
            Self::CutOff => Some(
                "Your last answer was cut off at the output limit. Write a much shorter record, and end it."
                    .to_owned(),
            ),
            Self::Incomplete => Some("Your last answer broke off. Write the whole record again.".to_owned()),
            Self::ToolCalls => Some(
                "Your last answer called tools, and there are none here. Write the record as text."
                    .to_owned(),
            ),
            Self::TooLong { tokens, cap } => Some(format!(
                "Your last answer had about {tokens} tokens, and at most {cap} are allowed. Write a shorter record."
            )),
            Self::Hollow => Some(
                "Your last answer had headings and nothing below them. Write the record with its content."
                    .to_owned(),
            ),
            Self::Headings { missing, .. } => Some(format!(
                "Your last answer lacked headings that were asked for: {}. Write the record with all of them.",
                missing.join(", ")
            )),
            Self::Filtered => None,
        }
    }
}

/// Checks a summariser's answer, and returns its text. With `check_headings`, text before the first heading
/// ("Sure, here is the record:") is left out.
///
/// # Errors
/// Why it cannot be installed.
pub fn accept(
    answer: &AssistantMessage,
    kind: SummaryKind,
    cap_tokens: u64,
    check_headings: bool,
) -> Result<String, Rejected> {
    if answer.tool_calls().next().is_some() {
        return Err(Rejected::ToolCalls);
    }
    match answer.stop {
        StopReason::Stop => {}
        StopReason::Length => return Err(Rejected::CutOff),
        StopReason::ToolCalls => return Err(Rejected::ToolCalls),
        StopReason::ContentFilter => return Err(Rejected::Filtered),
        StopReason::Aborted | StopReason::Error | StopReason::Paused | StopReason::Unknown => {
            return Err(Rejected::Incomplete);
        }
    }
    let text = answer.text();
    let text = if check_headings { from_first_heading(&text, kind) } else { text.trim() };
    if text.is_empty() {
        return Err(Rejected::Empty);
    }
    if check_headings {
        check_form(text, kind)?;
    }
    let tokens = classes::tokens(text);
    if tokens <= cap_tokens {
        return Ok(escape_tags(text));
    }
    // Slightly too long: it is truncated at the end of a line, if the form survives that.
    let too_long = Rejected::TooLong { tokens, cap: cap_tokens };
    let cut = cut_at_line(text, cap_tokens).filter(|_| tokens <= output_tokens(cap_tokens));
    let cut = cut.ok_or(too_long.clone())?;
    if check_headings && check_form(cut, kind).is_err() {
        return Err(too_long);
    }
    Ok(escape_tags(cut))
}

/// Checks that enough of the requested headings are present.
fn check_form(text: &str, kind: SummaryKind) -> Result<(), Rejected> {
    let (headings, needed) = kind.headings();
    let missing: Vec<&'static str> =
        headings.iter().copied().filter(|heading| !has_heading(text, heading)).collect();
    let found = headings.len() - missing.len();
    if found < needed {
        return Err(Rejected::Headings { found, needed, missing });
    }
    if text.lines().any(says_something) { Ok(()) } else { Err(Rejected::Hollow) }
}

/// Whether a line is more than a heading, a mark, or a word for nothing.
fn says_something(line: &str) -> bool {
    let line = line.trim();
    let item = line.trim_start_matches("- ").trim_start_matches("[x]");
    let bare = item.trim_matches(|c: char| !c.is_alphanumeric());
    let is_heading =
        line.starts_with('#') || (line.starts_with("**") && line.trim_end_matches(':').ends_with("**"));
    let is_nothing = ["", "none", "n/a", "na", "nothing", "empty", "not applicable", "unknown"];
    let is_number = bare.bytes().all(|byte| byte.is_ascii_digit());
    !is_heading && !is_number && !is_nothing.contains(&bare.to_lowercase().as_str())
}

/// Returns as many whole lines from the beginning as fit; `None` if that is not the greater part.
fn cut_at_line(text: &str, cap_tokens: u64) -> Option<&str> {
    let (kept, _) = split_at_tokens(text, cap_tokens);
    let end = kept.rfind('\n').filter(|end| *end > text.len() / 2)?;
    Some(text[..end].trim_end())
}

fn has_heading(text: &str, heading: &str) -> bool {
    text.lines().any(|line| is_heading(line, heading))
}

fn is_heading(line: &str, heading: &str) -> bool {
    let line = line.trim();
    let bare = line.trim_start_matches('#').trim().trim_matches('*').trim().trim_end_matches(':');
    (line.starts_with('#') || line.starts_with("**")) && bare.eq_ignore_ascii_case(heading)
}

/// Returns a summary from its first heading on; all of it if it has none. A code fence around the summary is
/// removed too.
fn from_first_heading(text: &str, kind: SummaryKind) -> &str {
    // An unrequested heading begins the summary as well: the text below it may be needed.
    let is_any_heading = |line: &str| {
        let after = line.trim_start().trim_start_matches('#');
        after.len() < line.trim_start().len() && after.starts_with([' ', '\t'])
    };
    let (headings, _) = kind.headings();
    let begins =
        |line: &str| is_any_heading(line) || headings.iter().any(|heading| is_heading(line, heading));
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if begins(line) {
            let (before, summary) = (text[..start].trim_end(), text[start..].trim());
            let opens_fence = before.lines().last().is_some_and(|line| line.trim_start().starts_with("```"));
            let inside = summary.strip_suffix("```").filter(|_| opens_fence);
            return inside.map_or(summary, str::trim_end);
        }
        start += line.len();
    }
    text.trim()
}

/// Returns the finished summary of a plan: the history's, the split turn's, the active request and the
/// footer.
pub fn assemble(plan: &Plan, history: Option<&str>, turn_prefix: Option<&str>) -> String {
    let previous = plan.previous_summary.as_deref().map(without_footer);
    let mut text = match (history, previous) {
        (Some(history), _) => history.trim().to_owned(),
        // An imported one was never checked.
        (None, Some(previous)) => escape_tags(previous.trim()),
        (None, None) => "(Nothing happened before the turn in progress.)".to_owned(),
    };
    if let Some(prefix) = turn_prefix {
        let _ = write!(
            text,
            "\n\n---\n\n# Turn Context (the beginning of the turn in progress)\n\n{}",
            prefix.trim()
        );
    }
    append_footer(text, &plan.carried_text(), plan.active_request.as_deref(), &plan.files)
}

/// Returns the text that is installed if no summary is possible: counts, the previous summary, the active
/// request, the footer.
///
/// If a summary was `wanted`, the text says that there is none.
pub(crate) fn truncated(plan: &Plan, cap_tokens: u64, wanted: bool) -> String {
    let mut counts = [0u64; 4];
    for entry in plan.history.iter().chain(&plan.turn_prefix) {
        let slot = match entry.kind.as_message().map(|message| &**message) {
            Some(Message::User(_)) => 0,
            Some(Message::Assistant(_)) => 1,
            Some(Message::ToolResult(_)) => 2,
            None if crate::path::is_message(&entry.kind) => 3,
            None => continue,
        };
        counts[slot] += 1;
    }
    let names = ["user", "assistant", "tool", "other"];
    let listed: Vec<String> = names
        .iter()
        .zip(counts)
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let previous = plan.previous_summary.as_deref().map(without_footer);
    let is_again = previous.is_some_and(|previous| previous.starts_with(CUT_NOTE));
    let without = match (wanted, is_again) {
        (true, true) => " No summary of them could be made. Nor of others before them.",
        (true, false) => " No summary of them could be made.",
        (false, true) => " Others before them were left out, too.",
        (false, false) => "",
    };
    let mut text =
        format!("{CUT_NOTE}{} messages: {}.{without}]", plan.messages_removed(), listed.join(", "));
    if let Some(previous) = previous.map(without_cut_note).filter(|body| !body.is_empty()) {
        let _ = write!(text, "\n\n{}", escape_tags(&keep_within(&previous, cap_tokens)));
    }
    append_footer(text, &plan.carried_text(), plan.active_request.as_deref(), &plan.files)
}

/// Returns a summary without the line that reports a cut.
pub(crate) fn without_cut_note(summary: &str) -> String {
    match summary.strip_prefix(CUT_NOTE).and_then(|noted| noted.split_once(']')) {
        Some((_, after)) => after.trim_start().to_owned(),
        None => summary.to_owned(),
    }
}

/// Returns a supplied summary, escaped, with the active request and the footer.
pub(crate) fn supplied(plan: &Plan, summary: &str) -> String {
    append_footer(
        escape_tags(summary.trim()),
        &plan.carried_text(),
        plan.active_request.as_deref(),
        &plan.files,
    )
}

/// Returns the record of a branch that was left, with the files touched there as its footer.
pub(crate) fn branch_record(text: &str, files: &FileOps) -> String {
    append_footer(text.to_owned(), "", None, files)
}

/// Escapes a text so that nothing in it can be taken for one of our tags, or for the role at the beginning of
/// a line: their first character is escaped.
pub(crate) fn escape_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut line_start = true;
    let mut rest = text;
    while let Some(at) = rest.find(['<', '[', '\n', '\r']) {
        out.push_str(&rest[..at]);
        line_start &= rest[..at].trim().is_empty();
        let (mark, after) = (&rest[at..=at], &rest[at + 1..]);
        match mark {
            "\n" | "\r" => {
                line_start = true;
                out.push_str(mark);
            }
            "<" => {
                let name = after.trim_start_matches(|c: char| c == '/' || c.is_whitespace());
                let ours = TAGS.iter().any(|tag| {
                    let prefix = name.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag));
                    let next = name.get(tag.len()..).and_then(|after| after.chars().next());
                    prefix && next.is_none_or(|next| !next.is_alphanumeric() && next != '-' && next != '_')
                });
                out.push_str(if ours { "&lt;" } else { "<" });
                line_start = false;
            }
            _ => {
                let poses = |role: &&str| {
                    rest[at..].get(..role.len()).is_some_and(|start| start.eq_ignore_ascii_case(role))
                };
                let ours = line_start && ROLES.iter().any(poses);
                out.push_str(if ours { "\\[" } else { "[" });
                line_start = false;
            }
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Returns as much of the beginning of a text as fits.
fn keep_within(text: &str, cap_tokens: u64) -> String {
    if classes::tokens(text) <= cap_tokens {
        return text.to_owned();
    }
    let (kept, _) = split_at_tokens(text, cap_tokens);
    format!("{kept}\n[… cut …]")
}
