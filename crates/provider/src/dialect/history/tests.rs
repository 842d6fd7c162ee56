//! The data kept between requests: the bytes are those of writing everything anew.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::random::Random;
use greenroom_kernel::{
    AssistantMessage, Block, Image, Message, Messages, Native, Part, StopReason, ToolCall, ToolResult,
    ToolStatus,
};

use super::{BLOCK_BYTES, Elements, History, Needs};
use crate::settings::ResendReasoning;
use crate::{Api, ModelSettings, Purpose, Request, ServerOptions};

pub(crate) fn request(messages: Vec<Arc<Message>>) -> Request {
    Request {
        model: "m".to_owned(),
        system: None,
        messages: messages.into(),
        tools: Arc::from([]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: "s".to_owned(),
    }
}

/// Writes each message as its text. A block may end after each.
pub(crate) fn plain(messages: &[Arc<Message>], elements: &mut Elements) -> serde_json::Result<Needs> {
    for (index, message) in messages.iter().enumerate() {
        elements.push(&message.text())?;
        elements.cut(index + 1);
    }
    Ok(Needs::Nothing)
}

#[test]
fn what_is_repeated_is_not_written_again() {
    let texts = |count: usize| -> Vec<Arc<Message>> {
        (0..count).map(|number| Arc::new(Message::user(format!("{number} {}", "x".repeat(1_000))))).collect()
    };
    let messages = texts(200);
    let mut history = History::default();
    let mut written = |messages: &[Arc<Message>]| {
        let counted = std::cell::Cell::new(0);
        let request = request(messages.to_vec());
        let pieces = history.write(&request, &request.messages, |messages, elements| {
            counted.set(counted.get() + messages.len());
            plain(messages, elements)
        });
        let pieces = pieces.expect("it can be written");
        let expected: Vec<String> =
            messages.iter().map(|message| format!("\"{}\"", message.text())).collect();
        assert_eq!(String::from_utf8(pieces.concat()).expect("text"), expected.join(","));
        (counted.get(), pieces)
    };
    assert_eq!(written(&messages[..100]).0, 100);
    let (count, before) = written(&messages[..102]);
    assert_eq!(count, 2);
    let (count, after) = written(&messages);
    assert_eq!(count, 98);
    // The same bytes, not a copy.
    let shared = after.iter().filter(|piece| before.iter().any(|one| one.as_ptr() == piece.as_ptr())).count();
    assert!(shared >= 3 && before.iter().all(|piece| piece.len() < 2 * BLOCK_BYTES + 2_000), "{shared}");
    // Equal messages that are not the same ones.
    assert_eq!(written(&texts(200)).0, 0);
    assert_eq!(written(&messages).0, 0);
    // A shorter conversation: the block in which it ends is written again.
    assert!((1..=40).contains(&written(&messages[..150]).0));
    // Another one in its middle.
    let mut other = messages.clone();
    other[10] = Arc::new(Message::user("another"));
    assert_eq!(written(&other).0, 200);
    // Nothing at all.
    assert_eq!(written(&[]).0, 0);
    assert_eq!(written(&messages[..1]).0, 1);
}

/// What happens to a conversation besides growing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Undo,
    Compaction,
    /// A prune, an image that is left out, a hook: a message has another text.
    Text,
    Waking,
    Model,
    Reasoning,
    /// A result without its call, or something that is missing: what pairing deals with.
    Pairing,
    /// Another server answers: the one before misses what comes, until it is asked again.
    Fallback,
}

const CHANGES: usize = 8;

/// A conversation that grows and changes as those of sessions do.
struct Life {
    random: Random,
    /// The list that requests share: it is extended in place, and replaced by whatever else changes it.
    messages: Messages,
    changes: [usize; CHANGES],
    /// The server that is asked.
    server: usize,
    calls: usize,
    model: usize,
    resend: Option<ResendReasoning>,
}

impl Life {
    fn text(&mut self) -> String {
        let long = self.random.index(24) == 0;
        ["so", "é \"quoted\"\n", " ", ""][self.random.index(if long { 2 } else { 4 })].repeat(if long {
            6_000
        } else {
            1
        })
    }

    fn blocks(&mut self) -> Vec<Block> {
        let mut blocks = vec![Block::Text(self.text())];
        match self.random.index(10) {
            0 => blocks.push(Block::Image(Image { media_type: "image/png".into(), data: "QUJD".into() })),
            1 => {
                let dialect = ["anthropic", "responses"][self.random.index(2)].to_owned();
                let block = r#"{"type":"compaction","content":"c","encrypted_content":"e"}"#.to_owned();
                let native = Native { provider: dialect.clone(), dialect, blocks: vec![block] };
                blocks.push(Block::Native(native));
            }
            _ => {}
        }
        blocks
    }

    fn answer(&mut self) -> Vec<String> {
        let opaque =
            |dialect: &str, data: &str| Part::OpaqueReasoning { dialect: dialect.into(), data: data.into() };
        let mut content = Vec::new();
        let mut ids = Vec::new();
        for _ in 0..self.random.index(5) {
            match self.random.index(9) {
                0 | 1 => content.push(Part::Text(self.text())),
                2 => {
                    content.push(Part::Reasoning("hm".into()));
                    content.push(opaque("anthropic", r#"{"type":"thinking","signature":"S+/"}"#));
                }
                3 => content.push(Part::Reasoning("of another".into())),
                4 => content.push(opaque(
                    "responses",
                    r#"{"type":"reasoning","encrypted_content":"E","summary":[]}"#,
                )),
                5 => {
                    content.push(Part::Reasoning("thought".into()));
                    content.push(opaque("gemini", r#"{"thought":true,"thoughtSignature":"QUJD"}"#));
                }
                6 => content.push(Part::OpaqueBlock {
                    dialect: "anthropic".into(),
                    data: r#"{"type":"server_tool_use","id":"s","name":"n","input":{}}"#.into(),
                }),
                _ => {
                    // Sometimes an id that an earlier call has.
                    self.calls += usize::from(self.random.index(8) > 0);
                    let id = format!("c{}", self.calls);
                    let arguments = ["{}", "", "no", "{\"a\": 1e3}"][self.random.index(4)].to_owned();
                    content.push(Part::ToolCall(ToolCall { id: id.clone(), name: "read".into(), arguments }));
                    if self.random.index(2) == 0 {
                        let data =
                            format!(r#"{{"functionCall":{{"id":"g{id}"}},"thoughtSignature":"QUJD"}}"#);
                        content.push(opaque("gemini", &data));
                    }
                    ids.push(id);
                }
            }
        }
        let provider = ["anthropic", "openai", "google", "p"][self.random.index(4)].to_owned();
        self.messages.push(Arc::new(Message::Assistant(AssistantMessage::new(
            content,
            provider,
            "m",
            StopReason::Stop,
        ))));
        ids
    }

    fn result(&mut self, call_id: String) {
        let content = self.blocks();
        self.messages.push(Arc::new(Message::ToolResult(ToolResult {
            call_id,
            tool_name: "read".into(),
            content,
            status: ToolStatus::Ok,
            touched: Vec::new(),
        })));
    }

    fn changed(&mut self, change: Change) {
        self.changes[change as usize] += 1;
    }

    /// Changes the messages otherwise than at their end.
    fn rewrite(&mut self, change: Change, rewrite: impl FnOnce(&mut Vec<Arc<Message>>)) {
        self.changed(change);
        let mut messages = self.messages.to_vec();
        rewrite(&mut messages);
        self.messages = messages.into();
    }

    /// Lives on: usually by a turn, and sometimes by what changes the past.
    fn step(&mut self) {
        let len = self.messages.len();
        match self.random.index(26) {
            // Or a branch.
            0 => {
                let len = self.random.index(len + 1);
                self.changed(Change::Undo);
                self.messages.truncate(len);
            }
            // A summary in place of the beginning.
            1 if len > 4 => {
                let from = 1 + self.random.index(len - 1);
                let summary = Arc::new(Message::user("the summary"));
                self.rewrite(Change::Compaction, |messages| drop(messages.splice(..from, [summary])));
            }
            2 | 3 if len > 0 => {
                let at = self.random.index(len);
                let short = match &*self.messages[at] {
                    Message::ToolResult(result) => Message::ToolResult(ToolResult {
                        content: vec![Block::Text("[pruned]".into())],
                        ..result.clone()
                    }),
                    Message::User(_) => Message::user("[An image was here.]"),
                    Message::Assistant(answer) => Message::Assistant(AssistantMessage {
                        content: vec![Part::Text("other".into())],
                        ..answer.clone()
                    }),
                };
                // Only the end is replaced, or a copy of everything is made.
                if self.random.index(2) == 0 {
                    self.changed(Change::Text);
                    let mut end = self.messages[at..].to_vec();
                    end[0] = Arc::new(short);
                    self.messages.replace_from(at, end);
                } else {
                    self.rewrite(Change::Text, |messages| messages[at] = Arc::new(short));
                }
            }
            // The session was woken: equal messages that are not the same ones.
            4 => self.rewrite(Change::Waking, |messages| {
                messages.iter_mut().for_each(|message| *message = Arc::new(Message::clone(message)));
            }),
            5 => {
                self.changed(Change::Model);
                self.model = self.random.index(3);
            }
            6 => {
                self.changed(Change::Reasoning);
                let ways = [None, Some(ResendReasoning::Never), Some(ResendReasoning::AsReasoning)];
                self.resend = ways[self.random.index(3)];
            }
            7 => {
                self.changed(Change::Pairing);
                self.result("c1".to_owned());
            }
            8 if len > 1 => {
                let at = self.random.index(len);
                self.rewrite(Change::Pairing, |messages| drop(messages.remove(at)));
            }
            24 | 25 => {
                self.changed(Change::Fallback);
                self.server = self.random.index(SERVERS);
            }
            9..=12 => {
                let blocks = self.blocks();
                self.messages.push(Arc::new(Message::User(blocks)));
            }
            _ => {
                for id in self.answer() {
                    if self.random.index(10) > 0 {
                        self.result(id);
                    }
                }
            }
        }
    }
}

#[test]
fn the_bytes_are_those_of_writing_everything() {
    check_lives(0..240);
}

/// Run it in release, after a change to an encoder.
#[test]
#[ignore = "takes minutes"]
fn the_bytes_of_20_000_conversations() {
    check_lives(0..20_000);
}

const SERVERS: usize = 4;
const STEPS: usize = 40;

/// Random conversations over every API, each request written with what is kept and anew.
fn check_lives(seeds: Range<u64>) {
    let lives = usize::try_from(seeds.end).expect("it is small");
    let (mut compared, mut repeated, mut in_pieces, mut unread) = (0, [0; SERVERS], 0, 0);
    let mut changes = [0; CHANGES];
    for seed in seeds {
        let mut life = Life {
            random: Random::new(seed),
            messages: Messages::default(),
            changes: [0; CHANGES],
            server: usize::try_from(seed).expect("it is small") % SERVERS,
            calls: 0,
            model: 0,
            resend: None,
        };
        let servers = [
            (Api::Chat, "p", ["m", "n", "o"]),
            (Api::Responses, "openai", ["gpt-5", "gpt-5.2", "o3"]),
            (Api::Anthropic, "anthropic", ["claude-opus-5-5", "claude-opus-4-6", "claude-3-7-sonnet"]),
            (Api::Gemini, "google", ["gemini-2.5-pro", "gemini-3-pro", "gemini-2.0-flash"]),
        ];
        let mut servers = servers.map(|(api, name, models)| {
            let options = ServerOptions { name: name.to_owned(), api, ..ServerOptions::default() };
            (api.dialect(&options), options, models, History::default())
        });
        for _ in 0..STEPS {
            life.step();
            let index = life.server;
            let (dialect, options, models, history) = &mut servers[index];
            let mut request = request(Vec::new());
            request.messages = life.messages.clone();
            request.model = models[life.model].to_owned();
            request.settings.resend_reasoning = life.resend;
            request.system = Some("Be brief.".to_owned());
            let encode = |history: &mut History| {
                let encoded = dialect.encode(&request, options, history);
                encoded.map(|encoded| encoded.body)
            };
            let anew = encode(&mut History::default()).expect("it can be written");
            let blocks: Vec<Bytes> = history.blocks.iter().map(|block| block.bytes.clone()).collect();
            unread += usize::from(!blocks.is_empty() && request.messages.continues(&history.of));
            let kept = encode(history).expect("it can be written");
            let (anew, kept_bytes) = (anew.concat(), kept.concat());
            let differs = anew.iter().zip(&kept_bytes).position(|(one, other)| one != other);
            if let Some(at) = differs.or((anew.len() != kept_bytes.len()).then_some(anew.len())) {
                let near = |bytes: &[u8]| {
                    let near = &bytes[at.saturating_sub(300).min(bytes.len())..bytes.len().min(at + 200)];
                    String::from_utf8_lossy(near).into_owned()
                };
                panic!("seed {seed}, {:?}:\n{}\n{}", options.api, near(&anew), near(&kept_bytes));
            }
            let now: Vec<Bytes> = history.blocks.iter().map(|block| block.bytes.clone()).collect();
            repeated[index] += usize::from(!blocks.is_empty() && now.starts_with(&blocks));
            in_pieces += usize::from(kept.len() > 3);
            compared += 1;
        }
        changes.iter_mut().zip(life.changes).for_each(|(all, own)| *all += own);
    }
    assert_eq!(compared, lives * STEPS);
    // In every API, what is kept is used again, also without reading the conversation; and everything changed the past.
    let is_enough = |count: &usize| *count > lives / 2;
    assert!(repeated.iter().all(is_enough) && in_pieces > lives, "{repeated:?} {in_pieces}");
    assert!(changes.iter().all(is_enough) && unread > lives, "{changes:?} {unread}");
}
