//! Limits for the text that a tool may return, and a collector that keeps head and tail and counts the rest.
//!
//! Invariants: a [`Clip`] holds at most its byte limit in memory, and what it takes to recognise secrets at the cuts,
//! however much is pushed; its text reports what was omitted, in lines and bytes, and how to get it. No cut divides a
//! secret: its half would not be recognised any more.

use std::collections::VecDeque;

use greenroom_kernel::Block;
use greenroom_kernel::redact::Redactor;

/// The maximum amount of text of one tool result that is kept, in bytes. The part that enters the context is decided
/// where the result is recorded.
pub(crate) const RESULT_BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of lines of one tool result that are kept.
pub(crate) const RESULT_LINES_MAX: usize = 100_000;
/// The maximum amount of text a built-in tool collects, in bytes: less than a context takes of one result, to leave
/// room for remarks.
#[cfg(feature = "command-tools")]
pub(crate) const BODY_BYTES_MAX: usize = 48 * 1024;
/// The maximum number of lines a built-in tool collects.
#[cfg(feature = "command-tools")]
pub(crate) const BODY_LINES_MAX: usize = 1_900;

/// Keeps the head and the tail of a stream of text.
#[derive(Debug)]
pub(crate) struct Clip {
    bytes_max: usize,
    lines_max: usize,
    redactor: Redactor,
    /// How much is held beyond the cuts, in bytes.
    reach: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    bytes_total: usize,
    newlines_total: usize,
}

impl Clip {
    pub(crate) fn new(bytes_max: usize, lines_max: usize, redactor: &Redactor) -> Self {
        Self {
            bytes_max,
            lines_max,
            redactor: redactor.clone(),
            reach: redactor.reach(),
            head: Vec::new(),
            tail: VecDeque::new(),
            bytes_total: 0,
            newlines_total: 0,
        }
    }

    /// Appends bytes; they need not end at a character or a line boundary.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.bytes_total += bytes.len();
        self.newlines_total += newlines(bytes);
        let head_max = self.bytes_max / 2 + self.reach;
        let (head, rest) = bytes.split_at(head_max.saturating_sub(self.head.len()).min(bytes.len()));
        self.head.extend_from_slice(head);
        let tail_max = self.bytes_max - self.bytes_max / 2 + self.reach;
        self.tail.extend(&rest[rest.len().saturating_sub(tail_max)..]);
        self.tail.drain(..self.tail.len().saturating_sub(tail_max));
    }

    /// Returns everything if it was within the limits; otherwise head, a mark that states what is missing and
    /// `how` to get it, and tail. Invalid UTF-8 becomes replacement characters.
    pub(crate) fn finish(mut self, how: &str) -> String {
        let tail = self.tail.make_contiguous();
        let lines_total =
            self.newlines_total + usize::from(!ends_line(if tail.is_empty() { &self.head } else { tail }));
        if self.head.len() + tail.len() == self.bytes_total {
            self.head.extend_from_slice(tail);
            if self.bytes_total <= self.bytes_max && lines_total <= self.lines_max {
                return String::from_utf8_lossy(&self.head).into_owned();
            }
            self.tail = self.head.clone().into();
        }
        let held = &*self.tail.make_contiguous();
        let (mut head, mut tail) = (&self.head[..], held);
        if self.bytes_total > self.bytes_max {
            head = whole_lines_head(&head[..self.bytes_max / 2]);
            tail = whole_lines_tail(&tail[tail.len() - (self.bytes_max - self.bytes_max / 2)..]);
        }
        head = first_lines(head, self.lines_max / 2);
        tail = last_lines(tail, self.lines_max - self.lines_max / 2);
        head = &self.head[..self.redactor.cut(&self.head, head.len(), false)];
        tail = &held[self.redactor.cut(held, held.len() - tail.len(), true)..];
        let cut_bytes = self.bytes_total - head.len() - tail.len();
        let cut_lines =
            lines_total.saturating_sub(newlines(head) + newlines(tail) + usize::from(!ends_line(tail)));
        let mut text = String::from_utf8_lossy(head).into_owned();
        if !ends_line(head) {
            text.push('\n');
        }
        text.push_str(&format!("[... {cut_lines} lines, {cut_bytes} bytes left out here; {how} ...]\n"));
        text.push_str(&String::from_utf8_lossy(tail));
        text
    }
}

/// Returns how many lines are missing where `line` is the mark that stands for the middle of a long text.
pub fn lines_left_out(line: &str) -> Option<u64> {
    let (lines, rest) = line.strip_prefix("[... ")?.split_once(" lines, ")?;
    rest.contains(" bytes left out here; ").then(|| lines.parse().ok()).flatten()
}

/// Brings all text of a result within the limits. Within them nothing changes; otherwise the texts become one
/// block in front of the images.
pub(crate) fn cap_blocks(content: Vec<Block>, redactor: &Redactor) -> Vec<Block> {
    let (mut bytes, mut lines) = (0, 0);
    for block in &content {
        if let Block::Text(text) = block {
            bytes += text.len() + 1;
            lines += newlines(text.as_bytes()) + 1;
        }
    }
    if bytes <= RESULT_BYTES_MAX + 1 && lines <= RESULT_LINES_MAX + 1 {
        return content;
    }
    let mut clip = Clip::new(RESULT_BYTES_MAX, RESULT_LINES_MAX, redactor);
    let mut images = Vec::new();
    for block in content {
        match block {
            Block::Text(text) => {
                if clip.bytes_total > 0 {
                    clip.push(b"\n");
                }
                clip.push(text.as_bytes());
            }
            Block::Image(_) | _ => images.push(block),
        }
    }
    let mut capped = vec![Block::Text(clip.finish("call again for a smaller part to see it"))];
    capped.append(&mut images);
    capped
}

/// Returns at most `bytes_max` bytes of `line`, cut at a character boundary, with a mark if something is
/// missing.
pub(crate) fn cap_line(line: &str, bytes_max: usize, redactor: &Redactor) -> String {
    if line.len() <= bytes_max {
        return line.to_owned();
    }
    let end = line_end(line.as_bytes(), line.floor_char_boundary(bytes_max), redactor);
    format!("{} [... {} more bytes in this line]", &line[..end], line.len() - end)
}

/// Returns where a line may be cut, at `at` or before. Of a long line, only what is near the cut is searched.
pub(crate) fn line_end(line: &[u8], at: usize, redactor: &Redactor) -> usize {
    let end = line.len().min(at + redactor.reach());
    redactor.cut(&line[..end], at, false)
}

fn newlines(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

fn ends_line(bytes: &[u8]) -> bool {
    bytes.last().is_none_or(|byte| *byte == b'\n')
}

/// Returns the part up to the last newline; without one, up to the last whole character.
fn whole_lines_head(bytes: &[u8]) -> &[u8] {
    match bytes.iter().rposition(|byte| *byte == b'\n') {
        // A newline far from the end would discard most of a long line.
        Some(newline) if newline >= bytes.len() / 2 => &bytes[..=newline],
        Some(_) | None => match std::str::from_utf8(bytes) {
            Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
            Ok(_) | Err(_) => bytes,
        },
    }
}

/// Returns the part after the first newline; without one, from the first whole character.
fn whole_lines_tail(bytes: &[u8]) -> &[u8] {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(newline) if newline < bytes.len() / 2 => &bytes[newline + 1..],
        Some(_) | None => {
            let start = bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count();
            &bytes[start..]
        }
    }
}

fn first_lines(bytes: &[u8], count: usize) -> &[u8] {
    let end = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(count.saturating_sub(1));
    end.map_or(bytes, |(newline, _)| &bytes[..=newline])
}

fn last_lines(bytes: &[u8], count: usize) -> &[u8] {
    // The newline that ends the last line separates nothing.
    let body = bytes.len() - usize::from(bytes.last() == Some(&b'\n'));
    let start = bytes[..body].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').nth(count - 1);
    start.map_or(bytes, |(newline, _)| &bytes[newline + 1..])
}

#[cfg(test)]
mod tests;
