//! The user's own words in the part of a conversation that a compaction replaces: which are quoted, and how.
//!
//! Invariants: only what the user typed is quoted, verbatim: no file and no output of a command that went along, no text
//! of the program, no result of a tool; each message once; constraints and corrections before the rest, and otherwise the
//! newest first, within the budget; the list of messages that are not quoted as a whole is bounded. The selection is
//! deterministic, and costs a pass over the user's messages.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::carried::{Carried, Quote};
use crate::entry::{Compaction, Entry, EntryId, EntryKind};
use crate::ledger::scan::{has_rule, is_rule, sentences};
use crate::message::{Block, Message};
use crate::prune::RECALL;
use crate::size::classes;
use crate::summary::escape_tags;
use crate::text::is_bounded;

#[cfg(test)]
mod tests;

/// The text before a file that went along with a prompt. The file's path follows.
pub const FILE_MARK: &str = "\n\n<file path=\"";
/// The texts before a command of the user's own whose output went along with a prompt, before the output, and after it.
pub const COMMAND_MARKS: [&str; 3] = ["\n\nI ran `", "`. It printed:\n```\n", "\n```"];
/// The maximum share of the budget for one message: one part in this many.
const MESSAGE_SHARE: u64 = 3;
/// The text before the quotes in a summary.
pub(crate) const MARK: &str = "\n\nThe user's own words, with the entry of each:\n<user-words>";
const CLOSE: &str = "</user-words>";
/// The text before the messages of which a summary shows not all words.
const LEFT_MARK: &str = "(More of them: ";
/// One message may have this many tokens in any case.
const MESSAGE_TOKENS_MIN: u64 = 64;
/// The maximum number of messages named as not quoted.
const LEFT_MAX: usize = 32;
/// The size of an entry's number and a line break, in tokens.
const MARK_TOKENS: u64 = 4;
/// The least room in which words are shown, in tokens: the text around them, and a sentence.
const SHOWN_TOKENS_MIN: u64 = 32;
/// The mark between two quoted parts of one message.
const GAP: &str = " […] ";
/// The size of that, in tokens.
const GAP_TOKENS: u64 = 5;

/// How many tokens of the user's words, by our estimate, a compaction carries and shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordsMax {
    /// How many it carries on.
    pub carried: u64,
    /// How many its summary shows.
    pub shown: u64,
}

/// The request in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    /// Its first message.
    pub(crate) from: EntryId,
    /// Its text, as the summary shows it.
    pub(crate) text: &'a str,
}

/// The user's words that a compaction carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// The quotes that are carried on, oldest first, those of the request in progress included.
    pub quotes: Vec<Quote>,
    /// The messages of which words were left out, for good: the newest of them, oldest first.
    pub left: Vec<EntryId>,
    /// The first message of the request in progress: it and later ones are shown as the request.
    pub request_from: Option<EntryId>,
    /// Whether the request in progress is shown with all its words.
    is_request_whole: bool,
    /// How many tokens of them the summary shows at most.
    shown_max: u64,
    /// The quotes that the summary shows.
    shown: Vec<Quote>,
    /// The messages of which it shows not all words.
    not_shown: Vec<EntryId>,
}

impl Words {
    /// Selects from the words that the previous compaction carries, and from those in `replaced`. `request` is the
    /// request in progress, which the summary shows in a place of its own.
    pub(crate) fn select(
        previous: Option<&Carried>,
        replaced: &[Arc<Entry>],
        request: Option<Request<'_>>,
        most: WordsMax,
    ) -> Self {
        if most.carried == 0 {
            return Self::default();
        }
        let mut left: Vec<EntryId> = previous.map_or(Vec::new(), |previous| previous.words_left.clone());
        let carried = previous.into_iter().flat_map(|previous| previous.words.iter().cloned());
        let typed = replaced.iter().filter_map(|entry| {
            let text = own_words(&entry.kind)?;
            Some(Quote { entry: entry.id, is_rule: has_rule(&text), text })
        });
        let request_from = request.map(|request| request.from);
        let is_request_whole = request.is_some_and(|request| !is_bounded(request.text));
        // The request is shown in another place, so its words take no room here; but they are kept for the next time.
        let is_request = |quote: &Quote| request_from.is_some_and(|from| quote.entry >= from);
        let (request, rest): (Vec<Quote>, Vec<Quote>) = carried.chain(typed).partition(is_request);
        let mut quotes = within(&rest, most.carried, &mut left);
        quotes.extend(within(&request, most.carried, &mut left));
        let (left, shown_max) = (newest(left), most.shown);
        let (shown, not_shown) = (Vec::new(), Vec::new());
        let mut words = Self { quotes, left, request_from, is_request_whole, shown_max, shown, not_shown };
        words.limit(shown_max);
        words
    }

    /// Whether the summary shows any of them.
    pub(crate) fn is_shown(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Shows no more of them than fit into `tokens_max` tokens by our estimate, and names the messages of the others.
    pub(crate) fn limit(&mut self, tokens_max: u64) {
        let tokens_max = tokens_max.min(self.shown_max);
        self.hide();
        if tokens_max >= SHOWN_TOKENS_MIN {
            let is_before = |entry: EntryId| self.request_from.is_none_or(|from| entry < from);
            let is_shown = |quote: &&Quote| is_before(quote.entry);
            let quotes: Vec<Quote> = self.quotes.iter().filter(is_shown).cloned().collect();
            let mut not_shown = self.left.clone();
            not_shown.retain(|entry| !self.is_request_whole || is_before(*entry));
            self.shown = within(&quotes, tokens_max, &mut not_shown);
            self.not_shown = newest(not_shown);
        }
    }

    /// Shows none of them.
    pub(crate) fn hide(&mut self) {
        (self.shown, self.not_shown) = (Vec::new(), Vec::new());
    }

    /// Returns the text in the summary; empty if there is nothing to show.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Quote { entry, text: said, .. } in &self.shown {
            let _ = writeln!(text, "[{entry}] {}", escape_tags(said));
        }
        if !self.not_shown.is_empty() {
            let left: Vec<String> = self.not_shown.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "{LEFT_MARK}{RECALL} with entry {})", left.join(", "));
        }
        if text.is_empty() { text } else { format!("{}\n{text}{CLOSE}", MARK.trim_start()) }
    }
}

/// Returns the words that a compaction's summary shows, those of the request in progress included, and the messages of
/// which it shows not all words.
pub(crate) fn shown_in(compaction: &Compaction) -> (Vec<Quote>, Vec<EntryId>) {
    let Carried { words, words_left, request_from, .. } = &compaction.carried;
    let is_request = |entry: EntryId| request_from.is_some_and(|from| entry >= from);
    let section = compaction.summary.split_once(MARK.trim_start()).map_or("", |(_, rest)| rest);
    let section = section.split_once(CLOSE).map_or(section, |(section, _)| section);
    let mut shown: Vec<Quote> = Vec::new();
    for line in section.trim_start_matches('\n').lines().take_while(|line| !line.starts_with(LEFT_MARK)) {
        let begun = words.iter().find_map(|quote| {
            let text = line.strip_prefix(&format!("[{}] ", quote.entry))?;
            let is_next = shown.last().is_none_or(|last| quote.entry > last.entry);
            is_next.then(|| Quote { text: text.to_owned(), ..quote.clone() })
        });
        if let Some(quote) = begun {
            shown.push(quote);
        } else if let Some(last) = shown.last_mut() {
            last.text.extend(["\n", line]);
        }
    }
    let is_whole = |quote: &Quote| {
        is_request(quote.entry)
            || shown.iter().any(|shown| shown.entry == quote.entry && shown.text == escape_tags(&quote.text))
    };
    let is_request_whole = compaction.active_request.as_deref().is_none_or(|request| !is_bounded(request));
    let mut left: Vec<EntryId> =
        words_left.iter().copied().filter(|entry| !(is_request(*entry) && is_request_whole)).collect();
    left.extend(words.iter().filter(|quote| !is_whole(quote)).map(|quote| quote.entry));
    shown.extend(words.iter().filter(|quote| is_request(quote.entry)).cloned());
    (shown, newest(left))
}

/// Returns what the user typed; `None` for everything else.
pub fn own_words(kind: &EntryKind) -> Option<String> {
    let EntryKind::Message { message, inbox, steer, .. } = kind else { return None };
    // A message that joins a turn without having waited comes from the program: a validator's correction.
    if *steer && inbox.is_none() {
        return None;
    }
    let Message::User(blocks) = &**message else { return None };
    let own = |block: &Block| match block {
        Block::Text(text) if text.starts_with(FILE_MARK.trim_start()) => None,
        Block::Text(text) => {
            let own = before_outputs(text);
            let own = own.split_once(FILE_MARK).map_or(own, |(own, _)| own).trim();
            (!own.is_empty()).then(|| own.to_owned())
        }
        Block::Image(_) | Block::Native(_) => None,
    };
    let texts: Vec<String> = blocks.iter().filter_map(own).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// Returns the part of a prompt before the outputs of the user's own commands, which are at its end.
pub fn before_outputs(text: &str) -> &str {
    let [ran, printed, end] = COMMAND_MARKS;
    if !text.ends_with(end) {
        return text;
    }
    let is_command = |(place, _): &(usize, &str)| {
        let rest = &text[place + ran.len()..];
        rest.split(ran).next().is_some_and(|command| command.contains(printed))
    };
    text.match_indices(ran).find(is_command).map_or(text, |(place, _)| &text[..place])
}

/// Returns the newest of these messages, oldest first, each once.
fn newest(mut entries: Vec<EntryId>) -> Vec<EntryId> {
    entries.sort_unstable();
    entries.dedup();
    entries.drain(..entries.len().saturating_sub(LEFT_MAX));
    entries
}

/// Returns the quotes that fit, oldest first; the others' entries are added to `left`.
fn within(quotes: &[Quote], tokens_max: u64, left: &mut Vec<EntryId>) -> Vec<Quote> {
    let mut order: Vec<usize> = (0..quotes.len()).collect();
    order.sort_by_key(|index| (!quotes[*index].is_rule, std::cmp::Reverse(quotes[*index].entry)));
    let most = (tokens_max / MESSAGE_SHARE).max(MESSAGE_TOKENS_MIN);
    let mut room = tokens_max;
    let mut taken: Vec<Quote> = Vec::new();
    for index in order {
        let quote = &quotes[index];
        let fits = most.min(room.saturating_sub(MARK_TOKENS));
        match shortened(&quote.text, quote.is_rule, fits) {
            Some((text, tokens)) => {
                room = room.saturating_sub(tokens + MARK_TOKENS);
                if text.len() < quote.text.len() {
                    left.push(quote.entry);
                }
                taken.push(Quote { text, ..quote.clone() });
            }
            None => left.push(quote.entry),
        }
    }
    taken.sort_by_key(|quote| quote.entry);
    taken
}

/// Returns as much of a text as has a place in `tokens_max` tokens, and its size: all of it, or its constraints and
/// corrections, or if it has none its first sentences; `None` if not even one sentence fits.
fn shortened(text: &str, is_rule_in_it: bool, tokens_max: u64) -> Option<(String, u64)> {
    // A token has at most twelve bytes, so a text that is too long need not be counted.
    if text.len() as u64 <= tokens_max.saturating_mul(12) {
        let tokens = classes::tokens(text);
        if tokens <= tokens_max {
            return Some((text.to_owned(), tokens));
        }
    }
    let (mut out, mut tokens, mut is_full) = (String::new(), 0, false);
    sentences(text, &mut |sentence| {
        if is_full || (is_rule_in_it && !is_rule(sentence)) {
            return;
        }
        let size = classes::tokens(sentence) + GAP_TOKENS;
        if tokens + size > tokens_max {
            is_full = !is_rule_in_it;
            return;
        }
        if !out.is_empty() {
            out.push_str(GAP);
        }
        out.push_str(sentence);
        tokens += size;
    });
    (!out.is_empty()).then_some((out, tokens))
}
