//! The notation in which tests draw a path: `"u:10 a:6 / c r:30 | u:4 a:2"`.
//!
//! One letter per entry: `u` user, `t` steer, `a` assistant with text, `e` empty assistant message, `c`
//! assistant with a tool call (`c2`: two), `r` result of the oldest open call, `s` shell command, `x` shell
//! command that the model must not see, `m` custom message, `b` branch summary, `C` compaction, `U` undo, `p`
//! pin, `l` label, `n` note. `:N` its tokens (stored, and as characters / 4 if the kind allows it); `=x,y`
//! the ids of its calls, or of the call that it answers; `@N` the entry that it points to (first kept,
//! undone, pinned); `<f` and `>f` a file that a result read or modified. `|` marks the cut, `/`
//! before the turn prefix of a split turn.
//!
//! Invariants: an entry's id is its position in the drawing, and each text begins with `m<id>.`, so that it can
//! be found in a transcript.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::entry::{Compaction, Custom, Entry, EntryId, EntryKind, Shell, Trigger};
use crate::files::{FileOps, Touch, Touched};
use crate::message::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus, Usage,
};

/// A drawn path and its marks.
#[derive(Debug, Clone)]
pub(crate) struct Drawn {
    /// The entries; an entry's id is its index.
    pub(crate) path: Vec<Arc<Entry>>,
    /// The entry after `|`.
    pub(crate) cut: Option<EntryId>,
    /// The entry after `/`.
    pub(crate) prefix: Option<EntryId>,
}

/// A path that grows as it is drawn.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sketch {
    pub(crate) path: Vec<Arc<Entry>>,
    open: Vec<String>,
}

/// Parses `drawing` into a path.
pub(crate) fn draw(drawing: &str) -> Drawn {
    let mut sketch = Sketch::default();
    let (mut cut, mut prefix) = (None, None);
    for word in drawing.split_whitespace() {
        let next = Some(EntryId(sketch.path.len() as u64));
        match word {
            "|" => cut = next,
            "/" => prefix = next,
            _ => sketch.add(word),
        }
    }
    Drawn { path: sketch.path, cut, prefix }
}

/// Returns only the entries of [`draw`].
pub(crate) fn path(drawing: &str) -> Vec<Arc<Entry>> {
    draw(drawing).path
}

impl Sketch {
    /// Draws more entries.
    pub(crate) fn add_all(&mut self, drawing: &str) {
        drawing.split_whitespace().for_each(|word| self.add(word));
    }

    /// Appends an entry with the next id.
    pub(crate) fn push(&mut self, kind: EntryKind, tokens: u64) -> EntryId {
        let id = EntryId(self.path.len() as u64);
        let parent = id.0.checked_sub(1).map(EntryId);
        let reasoning_tokens = crate::size::entry_reasoning_tokens(&kind);
        self.path.push(Arc::new(Entry {
            id,
            parent,
            at_ms: 0,
            tokens,
            reasoning_tokens,
            origin: None,
            kind,
        }));
        id
    }

    fn add(&mut self, word: &str) {
        let mut chars = word.chars();
        let letter = chars.next().expect("a word is not empty");
        let rest = chars.as_str();
        let count = number(rest).unwrap_or(1);
        let tokens = after(rest, ':').and_then(number).unwrap_or(1);
        let target = after(rest, '@').and_then(number).map(EntryId);
        let ids: Vec<&str> = after(rest, '=').map_or(Vec::new(), |ids| ids.split(',').collect());
        let id = self.path.len();
        let text =
            |extra: usize| words(id, usize::try_from(tokens * 4).expect("small").saturating_sub(extra));
        let kind = match letter {
            'u' => EntryKind::message(Message::user(text(0))),
            't' => EntryKind::Message {
                message: Arc::new(Message::user(text(0))),
                inbox: None,
                steer: true,
                cost_microdollars: None,
            },
            'a' => EntryKind::message(Message::Assistant(assistant(vec![Part::Text(text(0))]))),
            'e' => EntryKind::message(Message::Assistant(assistant(Vec::new()))),
            'c' => {
                let ids: Vec<String> = if ids.is_empty() {
                    (0..count).map(|number| format!("k{id}-{number}")).collect()
                } else {
                    ids.into_iter().map(str::to_owned).collect()
                };
                let calls: Vec<Part> = ids.iter().map(|id| Part::ToolCall(call(id))).collect();
                let said = text(calls.len() * ("read".len() + r#"{"path":"x"}"#.len()));
                self.open = ids;
                let mut content = if said.is_empty() { Vec::new() } else { vec![Part::Text(said)] };
                content.extend(calls);
                EntryKind::message(Message::Assistant(AssistantMessage {
                    stop: StopReason::ToolCalls,
                    ..assistant(content)
                }))
            }
            'r' => {
                let call_id = match ids.first() {
                    Some(id) => (*id).to_owned(),
                    None if self.open.is_empty() => "nobody".to_owned(),
                    None => self.open.remove(0),
                };
                let mut result = result(&call_id, &text(0));
                let touched = |path: &str, touch| Touched { path: path.to_owned(), touch };
                result.touched.extend(after(rest, '<').map(|path| touched(path, Touch::Read)));
                result.touched.extend(after(rest, '>').map(|path| touched(path, Touch::Modified)));
                EntryKind::message(Message::ToolResult(result))
            }
            's' | 'x' => EntryKind::Shell(Shell {
                command: "ls".into(),
                output: text("ls".len()),
                exit_code: Some(0),
                cancelled: false,
                truncated: false,
                excluded: letter == 'x',
            }),
            'm' => EntryKind::Custom(Custom {
                kind: "test".into(),
                content: vec![Block::Text(text(0))],
                display: true,
            }),
            'b' => EntryKind::BranchSummary { from: EntryId(0), summary: text(0), files: FileOps::default() },
            'C' => EntryKind::Compaction(Box::new(compaction(target, &text(0)))),
            'U' => EntryKind::CompactionUndone { compaction: target.expect("U@ names what it undoes") },
            'p' => EntryKind::Pin { entry: target.expect("p@ names what it pins"), pinned: true },
            'l' => EntryKind::Label { target: EntryId(0), label: Some("here".into()) },
            'n' => EntryKind::Note { kind: "test".into(), data: "{}".into() },
            other => panic!("`{other}` draws nothing"),
        };
        let weighs = crate::path::is_message(&kind) || kind.as_compaction().is_some();
        self.push(kind, if weighs { tokens } else { 0 });
    }
}

/// Returns the text of entry `id`: its mark, and four-letter words up to `chars` characters.
fn words(id: usize, chars: usize) -> String {
    let mut text = format!("m{id}. ");
    while text.len() < chars {
        text.push_str("word ");
    }
    text.truncate(chars.max(format!("m{id}.").len()));
    text
}

fn after(word: &str, mark: char) -> Option<&str> {
    let rest = &word[word.find(mark)? + 1..];
    Some(rest.split([':', '=', '@', '<', '>']).next().unwrap_or(rest))
}

fn number(word: &str) -> Option<u64> {
    let digits: &str = &word[..word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len())];
    digits.parse().ok()
}

/// Returns an answer without usage.
pub(crate) fn assistant(content: Vec<Part>) -> AssistantMessage {
    AssistantMessage::new(content, "test", "test-1", StopReason::Stop)
}

/// Returns an answer of one text.
pub(crate) fn says(text: &str) -> AssistantMessage {
    assistant(vec![Part::Text(text.to_owned())])
}

/// Returns an answer that calls tools.
pub(crate) fn calls(ids: &[&str]) -> AssistantMessage {
    let content = ids.iter().map(|id| Part::ToolCall(call(id))).collect();
    AssistantMessage { stop: StopReason::ToolCalls, ..assistant(content) }
}

/// Returns a report of input and output tokens.
pub(crate) fn usage(input_tokens: u64, output_tokens: u64) -> Option<Usage> {
    Some(Usage { input_tokens, output_tokens, ..Usage::default() })
}

/// Returns a call of `read`.
pub(crate) fn call(id: &str) -> ToolCall {
    ToolCall { id: id.into(), name: "read".into(), arguments: r#"{"path":"x"}"#.into() }
}

/// Returns a successful result of `read`.
pub(crate) fn result(call_id: &str, text: &str) -> ToolResult {
    ToolResult {
        call_id: call_id.into(),
        tool_name: "read".into(),
        content: vec![Block::Text(text.into())],
        status: ToolStatus::Ok,
        touched: Vec::new(),
    }
}

/// Returns a recorded compaction that keeps from `first_kept` on.
pub(crate) fn compaction(first_kept: Option<EntryId>, summary: &str) -> Compaction {
    Compaction {
        base: None,
        previous: None,
        first: None,
        last: None,
        first_kept,
        summary: summary.into(),
        active_request: None,
        files: FileOps::default(),
        trigger: Trigger::Threshold,
        truncated: false,
        from_hook: false,
        is_split_turn: false,
        tokens_before: 0,
        tokens_after: 0,
        messages_before: 0,
        messages_removed: 0,
        duration_ms: 0,
        model: String::new(),
        usage: Usage::default(),
        cost_microdollars: None,
        debt: Vec::new(),
        native: None,
        carried: crate::carried::Carried::default(),
        recall: None,
    }
}

/// Draws messages as they are sent: `S` a summary, `u`, `a`, `c=ids`, `r=id`, and `!` after the result of an
/// interrupted call.
pub(crate) fn drawn(messages: &[Arc<Message>]) -> String {
    let mut out = String::new();
    for message in messages {
        let _ = match &**message {
            Message::User(_) if message.text().starts_with(crate::render::SUMMARY_LEAD) => write!(out, " S"),
            Message::User(_) => write!(out, " u"),
            Message::Assistant(_) => {
                let ids: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
                if ids.is_empty() { write!(out, " a") } else { write!(out, " c={}", ids.join(",")) }
            }
            Message::ToolResult(result) => {
                let mark = if result.status == ToolStatus::Interrupted { "!" } else { "" };
                write!(out, " r={}{mark}", result.call_id)
            }
        };
    }
    out.trim_start().to_owned()
}

/// A seeded generator of numbers (xorshift). The conversations of the random tests depend on its sequence.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// Returns `true` once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `choices`.
    pub(crate) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let index = usize::try_from(self.below(choices.len() as u64)).expect("an index");
        &choices[index]
    }
}

/// Returns a conversation of about `messages` messages that is as odd as an imported file may be: orphans,
/// duplicate and reused ids, misplaced results, empty messages, compactions, undos.
pub(crate) fn odd_path(random: &mut Random, messages: u64) -> Vec<Arc<Entry>> {
    let mut sketch = Sketch::default();
    let mut compactions = Vec::new();
    for _ in 0..messages {
        let here = sketch.path.len() as u64;
        let word = match random.below(24) {
            0..=3 => "u".into(),
            4..=6 => "a".into(),
            7..=9 => format!("c{}", 1 + random.below(3)),
            10..=15 => "r".into(),
            16 => format!("c={},{}", random.pick(&["x", "y", "z"]), random.pick(&["x", "y", "z"])),
            17 => format!("r={}", random.pick(&["x", "y", "z"])),
            18 => (*random.pick(&["s", "x", "m", "b"])).to_owned(),
            19 => (*random.pick(&["l", "n", "e"])).to_owned(),
            20 if here > 2 => format!("C@{}", random.below(here + 2)),
            21 if !compactions.is_empty() => format!("U@{}", random.pick(&compactions)),
            _ => "u".into(),
        };
        if word.starts_with('C') {
            compactions.push(here);
        }
        sketch.add(&format!("{word}:{}", 1 + random.below(40)));
    }
    sketch.path
}
