//! Ranked search by words in the entries of a session (BM25).
//!
//! Invariants: an index holds no text, only hashes of words with their entries, so that it is small and the log stays
//! the only copy; adding an entry is linear in its text, of which a bounded part counts; a search is linear in the
//! entries that have one of its words; the same entries give the same order.

use std::collections::HashMap;

use crate::entry::{Entry, EntryId, EntryKind};
use crate::message::{Message, ToolResult, blocks_text};

#[cfg(test)]
mod tests;

/// How much of an entry's beginning counts, in bytes.
const HEAD_BYTES: usize = 12 * 1024;
/// How much of a longer entry's end counts, in bytes.
const TAIL_BYTES: usize = 4 * 1024;
/// How soon further occurrences of a word in one entry stop to count.
const SATURATION: f32 = 1.2;
/// How much the length of an entry counts against it.
const LENGTH_SHARE: f32 = 0.75;
/// The longest piece of a text that is judged as one, in bytes.
const PIECE_BYTES: usize = 240;
/// Words that say nothing about a text. They are left out of a query that has others.
const COMMON: [&str; 48] = [
    "a", "an", "and", "any", "are", "as", "at", "be", "by", "did", "do", "does", "for", "from", "had", "has",
    "have", "how", "i", "in", "is", "it", "its", "of", "on", "or", "that", "the", "their", "them", "there",
    "they", "this", "to", "was", "we", "were", "what", "when", "where", "which", "who", "why", "will",
    "with", "would", "you", "your",
];

/// The words of a session's entries.
#[derive(Debug, Default)]
pub struct Index {
    /// The parent of every entry that was added, by its position; `u32::MAX` for none.
    parents: Vec<u32>,
    /// The entries that have text.
    documents: Vec<Document>,
    /// For each word, the documents that have it.
    postings: HashMap<u32, Vec<Posting>>,
    words: u64,
    postings_count: usize,
    /// The whole result that was added last: its words count for the shortened result that follows, because that is on
    /// the path.
    whole_result: Option<WholeResult>,
}

#[derive(Debug)]
struct WholeResult {
    call_id: String,
    words: Words,
}

/// The words of a text.
#[derive(Debug, Default)]
struct Words {
    /// How often the text has each.
    times: HashMap<u32, u32>,
    count: u32,
}

impl Words {
    fn of(text: &str) -> Self {
        let mut words = Self::default();
        for part in counted(text) {
            for_each_word(part, |word| {
                words.count += 1;
                *words.times.entry(word).or_default() += 1;
            });
        }
        words
    }
}

#[derive(Debug, Clone, Copy)]
struct Document {
    entry: u32,
    words: u32,
}

#[derive(Debug, Clone, Copy)]
struct Posting {
    document: u32,
    times: u32,
}

/// An entry that a search found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// The entry.
    pub entry: EntryId,
    /// How well it matches; comparable within one session.
    pub score: f32,
}

/// The words that are searched for, with what each is worth.
#[derive(Debug, Clone)]
pub struct Query {
    words: Vec<(u32, f32)>,
}

impl Index {
    /// Returns how many entries were added: the position of the next one.
    pub fn entries(&self) -> u64 {
        self.parents.len() as u64
    }

    /// Returns about how much memory it takes, in bytes.
    pub fn bytes(&self) -> usize {
        self.parents.len() * size_of::<u32>()
            + self.documents.len() * size_of::<Document>()
            + self.postings_count * size_of::<Posting>()
            + self.postings.len() * (size_of::<(u32, Vec<Posting>)>() + 16)
    }

    /// Adds an entry that cannot be read.
    pub fn skip(&mut self) {
        self.parents.push(u32::MAX);
    }

    /// Adds the next entry of the log.
    ///
    /// # Panics
    /// If it is not the next one.
    pub fn add(&mut self, entry: &Entry) {
        assert_eq!(entry.id.0, self.entries(), "entries are added in the order of the log");
        let position = |id: EntryId| u32::try_from(id.0).unwrap_or(u32::MAX);
        self.parents.push(entry.parent.map_or(u32::MAX, position));
        let whole = self.whole_result.take();
        if let EntryKind::WholeResult { call_id, content } = &entry.kind {
            let words = Words::of(&blocks_text(content));
            self.whole_result = Some(WholeResult { call_id: call_id.clone(), words });
            return;
        }
        let whole = whole.filter(|whole| shortens(&entry.kind, &whole.call_id)).map(|whole| whole.words);
        let Some(Words { times, count }) =
            whole.or_else(|| readable(&entry.kind).map(|text| Words::of(&text)))
        else {
            return;
        };
        if count == 0 {
            return;
        }
        let document = u32::try_from(self.documents.len()).unwrap_or(u32::MAX);
        self.documents.push(Document { entry: position(entry.id), words: count });
        self.words += u64::from(count);
        self.postings_count += times.len();
        for (word, times) in times {
            self.postings.entry(word).or_default().push(Posting { document, times });
        }
    }

    /// Returns the words of a question, rare ones with more weight. Words that no entry has are left out.
    pub fn query(&self, text: &str) -> Query {
        let mut all = Vec::new();
        for_each_word(text, |word| all.push(word));
        all.sort_unstable();
        all.dedup();
        let common: Vec<u32> = COMMON.iter().map(|word| hash(&stem(word))).collect();
        let telling: Vec<u32> = all.iter().copied().filter(|word| !common.contains(word)).collect();
        let chosen = if telling.is_empty() { all } else { telling };
        let worth = |word: u32| {
            let having = self.postings.get(&word)?.len();
            let (all, having) = (to_f32(self.documents.len()), to_f32(having));
            Some((word, (1.0 + (all - having + 0.5) / (having + 0.5)).ln()))
        };
        Query { words: chosen.into_iter().filter_map(worth).collect() }
    }

    /// Returns the best `limit` entries for which `is_meant` holds, best first; of equals the newer one first.
    pub fn find(&self, query: &Query, limit: usize, is_meant: impl Fn(EntryId) -> bool) -> Vec<Hit> {
        let mean = (to_f32(usize::try_from(self.words).unwrap_or(usize::MAX)) / to_f32(self.documents.len()))
            .max(1.0);
        // Most searches meet a large part of the documents, so each has a place.
        let mut scores = vec![0.0_f32; self.documents.len()];
        let mut met: Vec<u32> = Vec::new();
        for (word, worth) in &query.words {
            for posting in self.postings.get(word).into_iter().flatten() {
                let length = to_f32(self.documents[posting.document as usize].words as usize) / mean;
                let times = to_f32(posting.times as usize);
                let slowed = SATURATION * (1.0 - LENGTH_SHARE + LENGTH_SHARE * length);
                let score = &mut scores[posting.document as usize];
                if *score == 0.0 {
                    met.push(posting.document);
                }
                *score += worth * times * (SATURATION + 1.0) / (times + slowed);
            }
        }
        let hit = |document: u32| {
            let entry = EntryId(u64::from(self.documents[document as usize].entry));
            is_meant(entry).then_some(Hit { entry, score: scores[document as usize] })
        };
        let mut hits: Vec<Hit> = met.into_iter().filter_map(hit).collect();
        let better =
            |one: &Hit, other: &Hit| other.score.total_cmp(&one.score).then(other.entry.cmp(&one.entry));
        if hits.len() > limit {
            hits.select_nth_unstable_by(limit, better);
            hits.truncate(limit);
        }
        hits.sort_by(better);
        hits
    }

    /// Returns which entries lie on the path to this leaf, by their positions.
    pub fn path_to(&self, leaf: Option<EntryId>) -> Vec<bool> {
        let mut on_path = vec![false; self.parents.len()];
        let mut next = leaf.and_then(|leaf| usize::try_from(leaf.0).ok());
        while let Some(at) = next.filter(|at| *at < on_path.len() && !on_path[*at]) {
            on_path[at] = true;
            next = Some(self.parents[at]).filter(|parent| *parent != u32::MAX).map(|parent| parent as usize);
        }
        on_path
    }
}

impl Query {
    /// Whether no entry has any of its words.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the part of a text that matches best, at most about this many bytes, and the character at which it
    /// begins.
    pub fn passage<'t>(&self, text: &'t str, bytes_max: usize) -> (usize, &'t str) {
        let pieces = pieces(text);
        let score = |piece: &&str| {
            let mut found = Vec::new();
            for_each_word(piece, |word| {
                if let Some((_, worth)) = self.words.iter().find(|(own, _)| *own == word)
                    && !found.iter().any(|(known, _)| *known == word)
                {
                    found.push((word, *worth));
                }
            });
            found.iter().map(|(_, worth)| worth).sum::<f32>()
        };
        let scores: Vec<f32> = pieces.iter().map(score).collect();
        let best = (0..pieces.len())
            .max_by(|one, other| scores[*one].total_cmp(&scores[*other]).then(other.cmp(one)));
        let Some(best) = best else { return (0, "") };
        // It grows to the side that matches better, and forward if none does.
        let (mut first, mut last, mut bytes) = (best, best, pieces[best].len());
        loop {
            let room = |at: usize| bytes + pieces[at].len() <= bytes_max;
            let before = first.checked_sub(1).filter(|at| room(*at));
            let after = Some(last + 1).filter(|at| *at < pieces.len() && room(*at));
            match (before, after) {
                (Some(before), Some(after)) if scores[before] > scores[after] => first = before,
                (_, Some(after)) => last = after,
                (Some(before), None) => first = before,
                (None, None) => break,
            }
            bytes = pieces[first..=last].iter().map(|piece| piece.len()).sum();
        }
        let begin: usize = pieces[..first].iter().map(|piece| piece.len()).sum();
        let passage = &text[begin..begin + bytes];
        let passage = &passage[..passage.floor_char_boundary(bytes_max.max(1))];
        (text[..begin].chars().count(), passage)
    }
}

/// Whether an entry is a result of this call: directly behind the whole result, it is the shortened one.
fn shortens(kind: &EntryKind, call_id: &str) -> bool {
    let message = kind.as_message().map(|message| &**message);
    matches!(message, Some(Message::ToolResult(result)) if result.call_id == call_id)
}

/// Returns an entry with its whole text. The whole text of a result that was shortened on arrival is in the entry
/// `before` it.
pub fn whole_of(found: Entry, before: Option<Entry>) -> Entry {
    let Some(Entry { kind: EntryKind::WholeResult { call_id, content }, .. }) = before else { return found };
    match found.kind.as_message().map(|message| &**message) {
        Some(Message::ToolResult(result)) if result.call_id == call_id => {
            let whole = Message::ToolResult(ToolResult { content, ..result.clone() });
            Entry { kind: EntryKind::message(whole), ..found }
        }
        Some(_) | None => found,
    }
}

/// Returns an entry's text for a search; `None` if it has none.
pub fn readable(kind: &EntryKind) -> Option<String> {
    if let EntryKind::WholeResult { content, .. } = kind {
        Some(blocks_text(content))
    } else if let EntryKind::Shell(shell) = kind {
        Some(format!("{}\n{}", shell.command, shell.output))
    } else if let EntryKind::BranchSummary { summary, .. } = kind {
        Some(summary.clone())
    } else if let EntryKind::Custom(custom) = kind {
        Some(blocks_text(&custom.content))
    } else {
        kind.as_message().map(|message| message.said())
    }
}

/// Returns the parts of a text that count.
fn counted(text: &str) -> impl Iterator<Item = &str> {
    let head = text.floor_char_boundary(HEAD_BYTES);
    let tail = text.ceil_char_boundary(text.len().saturating_sub(TAIL_BYTES).max(head));
    [&text[..head], &text[tail..]].into_iter().filter(|part| !part.is_empty())
}

/// Splits a text at the ends of lines and sentences. The pieces together are the text.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while rest.len() > PIECE_BYTES {
            let most = rest.floor_char_boundary(PIECE_BYTES);
            let end = rest[..most]
                .rfind(". ")
                .map(|at| at + 2)
                .or_else(|| rest[..most].rfind(' ').map(|at| at + 1));
            let (piece, after) = rest.split_at(end.filter(|end| *end > 0).unwrap_or(most));
            pieces.push(piece);
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
    }
    pieces
}

/// Calls `with` for each word of a text, as a hash of its stem. Names are split at signs and at capitals.
fn for_each_word(text: &str, mut with: impl FnMut(u32)) {
    let mut word = String::new();
    let mut was_lower = false;
    let mut end = |word: &mut String| {
        if !word.is_empty() {
            with(hash(&stem(word)));
            word.clear();
        }
    };
    for c in text.chars() {
        if is_ideograph(c) {
            end(&mut word);
            word.push(c);
            end(&mut word);
        } else if c.is_alphanumeric() {
            if was_lower && c.is_uppercase() {
                end(&mut word);
            }
            word.extend(c.to_lowercase());
        } else {
            end(&mut word);
        }
        was_lower = c.is_lowercase();
    }
    end(&mut word);
}

/// Whether a character is a word of its own, in texts without spaces between words.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Returns an English word without its ending, so that its forms are found alike. Other words are hardly changed.
fn stem(word: &str) -> String {
    if !word.is_ascii() {
        return word.to_owned();
    }
    let without = |word: &str, ending: &str, least: usize| -> Option<String> {
        word.strip_suffix(ending).filter(|base| base.len() >= least).map(str::to_owned)
    };
    if let Some(base) = without(word, "ies", 2) {
        return base + "y";
    }
    let mut stem = word.to_owned();
    if !stem.ends_with("ss")
        && let Some(base) = without(&stem, "s", 3)
    {
        stem = base;
    }
    let base = without(&stem, "ing", 2).or_else(|| without(&stem, "ed", 2));
    if let Some(base) = base.filter(|base| base.contains(['a', 'e', 'i', 'o', 'u', 'y'])) {
        stem = base;
        // "stopped", but not "passed".
        if let [.., one, other] = stem.as_bytes()
            && one == other
            && !b"lsz".contains(one)
        {
            stem.pop();
        }
    }
    without(&stem, "e", 2).unwrap_or(stem)
}

/// FNV-1a.
fn hash(word: &str) -> u32 {
    word.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[expect(clippy::cast_precision_loss, reason = "counts for a ranking")]
fn to_f32(count: usize) -> f32 {
    count as f32
}
