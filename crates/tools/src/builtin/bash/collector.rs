//! The output of a command: head and tail for the model, lines for people, and all of it in a file if it is long.
//!
//! Invariants: memory is bounded, and so is the file. The file is private, and named only if it is complete or says
//! where it ends.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_kernel::redact::Redactor;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Shared;
use crate::Progress;
use crate::output::{BODY_BYTES_MAX, BODY_LINES_MAX, Clip, cap_line};
use crate::sandbox::private::OUTPUT_BYTES_MAX;

/// Collects the output: head and tail for the model, lines for people.
pub(super) struct Collector<'a> {
    clip: Clip,
    progress: &'a Progress,
    redactor: &'a Redactor,
    /// The current incomplete line, as far as it is needed for the part that is shown.
    line: Vec<u8>,
    /// How many lines were shown to people, and since when.
    shown: (usize, Instant),
    /// The file for the whole output. `None`: it is not kept.
    spill: Option<Spill>,
}

impl<'a> Collector<'a> {
    /// The longest part of a line that is shown to people, in bytes.
    const LINE_BYTES_MAX: usize = 500;
    /// The maximum number of lines shown to people in [`Self::PERIOD`]: nobody reads more, and the consumer needs time
    /// for other work, such as handling interrupts.
    const LINES_MAX: usize = 50;
    const PERIOD: Duration = Duration::from_millis(250);

    pub(super) fn new(progress: &'a Progress, redactor: &'a Redactor, spill: Option<Spill>) -> Self {
        Self {
            clip: Clip::new(BODY_BYTES_MAX, BODY_LINES_MAX, redactor),
            progress,
            redactor,
            line: Vec::new(),
            shown: (0, Instant::now()),
            spill,
        }
    }

    /// Reads to the end of the stream. Dropping the future loses nothing.
    pub(super) async fn read_all(&mut self, output: &mut (impl AsyncRead + Unpin)) {
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(count @ 1..) = output.read(&mut buffer).await {
            self.take(&buffer[..count]);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.clip.push(bytes);
        if let Some(spill) = &mut self.spill {
            spill.push(bytes);
        }
        if self.shown.1.elapsed() >= Self::PERIOD {
            self.shown = (0, Instant::now());
        }
        let reach = self.redactor.reach();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let held_max = 2 * Self::LINE_BYTES_MAX + reach;
            let room = held_max.saturating_sub(self.line.len()).min(piece.len());
            self.line.extend_from_slice(&piece[..room]);
            if piece.ends_with(b"\n") {
                if self.shown.0 < Self::LINES_MAX {
                    self.shown.0 += 1;
                    self.report_line();
                }
                self.line.clear();
            }
        }
    }

    fn report_line(&self) {
        let line = String::from_utf8_lossy(&self.line);
        let line = line.trim_end_matches(['\n', '\r']);
        self.progress.report(cap_line(line, Self::LINE_BYTES_MAX, self.redactor));
    }

    pub(super) fn finish(self) -> String {
        if !self.line.is_empty() {
            self.report_line();
        }
        let how = self.spill.and_then(Spill::finish);
        let how =
            how.unwrap_or_else(|| "write the output to a file, or filter it, to see the rest".to_owned());
        self.clip.finish(&how)
    }
}

/// The whole output of a command, in memory while a result has room for it, and then in a file.
pub(super) struct Spill {
    shared: Arc<Shared>,
    /// The output so far, as long as there is no file.
    kept: Vec<u8>,
    lines: usize,
    bytes_total: u64,
    file: Option<(PathBuf, File)>,
    /// Whether the file could not be created or written.
    is_broken: bool,
}

impl Spill {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, kept: Vec::new(), lines: 0, bytes_total: 0, file: None, is_broken: false }
    }

    fn push(&mut self, bytes: &[u8]) {
        if self.is_broken {
            return;
        }
        let before = self.bytes_total;
        self.bytes_total += bytes.len() as u64;
        if self.file.is_none() {
            self.kept.extend_from_slice(bytes);
            self.lines += bytes.iter().filter(|byte| **byte == b'\n').count();
            if self.kept.len() > BODY_BYTES_MAX || self.lines > BODY_LINES_MAX {
                self.begin();
            }
            return;
        }
        let room = usize::try_from(OUTPUT_BYTES_MAX.saturating_sub(before)).unwrap_or(usize::MAX);
        self.write(&bytes[..room.min(bytes.len())]);
    }

    fn begin(&mut self) {
        match self.shared.private().and_then(super::PrivateFolder::next_output) {
            Ok(created) => {
                self.file = Some(created);
                let kept = std::mem::take(&mut self.kept);
                self.write(&kept);
            }
            Err(error) => {
                tracing::warn!(%error, "the output of a command could not be kept in a file");
                (self.is_broken, self.kept) = (true, Vec::new());
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some((_, file)) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            tracing::warn!(%error, "the output of a command could not be kept in a file");
            self.is_broken = true;
        }
    }

    /// Returns how to get the output, if there is a file.
    fn finish(self) -> Option<String> {
        let (path, _) = self.file.filter(|_| !self.is_broken)?;
        let path = path.display();
        Some(if self.bytes_total > OUTPUT_BYTES_MAX {
            format!(
                "the first {} MiB are in {path}; `read` it, or search it with a command",
                OUTPUT_BYTES_MAX >> 20
            )
        } else {
            format!("all of it is in {path}; `read` it, or search it with a command")
        })
    }
}

#[cfg(test)]
mod tests;
