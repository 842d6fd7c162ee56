//! `read`: reads a text file as numbered lines, or an image.
//!
//! Invariants: at most one part of the file is in memory; omissions are reported, with how to continue.

use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use greenroom_kernel::image::media_type;
use greenroom_kernel::redact::Redactor;
use greenroom_kernel::{Image, Touch};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::encoding::{self, Encoding};
use crate::output::{BODY_BYTES_MAX, BODY_LINES_MAX, line_end};
use crate::{FunctionTool, ToolContext, ToolError, ToolOutput, ToolsError, Workspace};

/// The longest part of a line that is shown, in bytes.
const LINE_BYTES_MAX: usize = 2_000;
/// The largest image that is sent, in bytes.
const IMAGE_BYTES_MAX: u64 = 5 * 1024 * 1024;
/// The largest file in another encoding than UTF-8 that is read, in bytes.
const DECODED_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// How much of a file is read in order to count its lines, in bytes.
const COUNTED_BYTES: usize = 64 * 1024 * 1024;
/// How much of a file is examined to tell text from binary data, in bytes.
const HEAD_BYTES: u64 = 8 * 1024;

/// Reads a file in the workspace. Text comes as lines, each after its number and a tab; a long file comes in parts,
/// and the last line says how to go on. PNG, JPEG, GIF and WebP images are shown.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    /// The file, relative to the workspace.
    path: String,
    /// The first line wanted, counted from 1. Default: 1.
    offset: Option<usize>,
    /// How many lines are wanted at most. Default: as many as fit.
    limit: Option<usize>,
}

/// Returns a further folder that can be read, if there is one now.
pub(super) type Further = Box<dyn Fn() -> Option<PathBuf> + Send + Sync>;

pub(super) fn tool(workspace: Workspace, further: Option<Further>) -> FunctionTool {
    crate::tool("read", move |arguments: Read, context: ToolContext| {
        let folder = further.as_ref().and_then(|further| further());
        let folder = folder.filter(|folder| Path::new(&arguments.path).starts_with(folder));
        let other = folder.and_then(|folder| Workspace::open(folder).ok());
        let is_other = other.is_some();
        let workspace = other.unwrap_or_else(|| workspace.clone());
        async move {
            let cancel = context.cancel.clone();
            let mut output =
                workspace.blocking(&cancel, move |w, cancel| read(w, &arguments, cancel, &context)).await?;
            if is_other {
                // It is no file of the project.
                output.touched.clear();
            }
            Ok::<_, ToolError>(output)
        }
    })
    .read_only()
    .shows_own_files()
}

fn read(
    workspace: &Workspace,
    arguments: &Read,
    cancel: &CancellationToken,
    context: &ToolContext,
) -> Result<ToolOutput, ToolsError> {
    let path = workspace.locate(&arguments.path)?;
    let shown = path.shown();
    let io = |error: std::io::Error| ToolsError::io(shown, error);
    let (mut file, version) = workspace.open_file(&path)?;
    let saw = |output| {
        workspace.saw(&context.session, &path, version);
        workspace.touched(output, &path, Touch::Read)
    };
    let size_bytes = file.metadata().map_err(io)?.len();
    let mut head = Vec::new();
    file.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(io)?;
    if let Some(media_type) = media_type(&head) {
        let output = image(shown, media_type, head, file, size_bytes)?;
        return Ok(saw(output));
    }
    let declared = Encoding::declared(&head);
    if head.contains(&0) && declared.is_none() {
        return Err(ToolsError::Refused(binary(shown, &head, size_bytes)));
    }
    let first = arguments.offset.unwrap_or(1);
    let wanted = arguments.limit.unwrap_or(BODY_LINES_MAX).min(BODY_LINES_MAX);
    if first == 0 || wanted == 0 {
        return Err(ToolsError::Refused("`offset` and `limit` count from 1".to_owned()));
    }
    let mut page = Page::new(first, wanted, context.redactor.clone());
    match declared {
        None => page.fill(BufReader::with_capacity(64 * 1024, head.chain(file)), cancel, shown)?,
        Some(encoding) => {
            let text = decoded(shown, encoding, head.chain(file), size_bytes)?;
            page.fill(text.as_bytes(), cancel, shown)?;
            page.encoding = Some(encoding);
        }
    }
    Ok(saw(ToolOutput::text(page.finish(shown, size_bytes)?)))
}

/// Reads a file in an encoding other than UTF-8 as a whole.
fn decoded(
    shown: &str,
    encoding: Encoding,
    from: impl std::io::Read,
    size_bytes: u64,
) -> Result<String, ToolsError> {
    let name = encoding.as_str();
    let mut content = Vec::new();
    from.take(DECODED_BYTES_MAX + 1)
        .read_to_end(&mut content)
        .map_err(|error| ToolsError::io(shown, error))?;
    if content.len() as u64 > DECODED_BYTES_MAX {
        return Err(ToolsError::Refused(format!(
            "`{shown}` is {name} of {size_bytes} bytes; at most {DECODED_BYTES_MAX} can be read unless it is UTF-8"
        )));
    }
    encoding::decode(content).map(|(_, text)| text).ok_or_else(|| {
        let text = format!("`{shown}` begins like {name}, but is not text: {size_bytes} bytes");
        ToolsError::Refused(text)
    })
}

/// Says that a file is binary, and what it may be.
fn binary(shown: &str, head: &[u8], size_bytes: u64) -> String {
    const KINDS: [(&[u8], &str); 12] = [
        (b"\x7fELF", "an ELF program or library"),
        (b"\xcf\xfa\xed\xfe", "a Mach-O program or library"),
        (b"MZ", "a Windows program or library"),
        (b"\0asm", "a WebAssembly module"),
        (b"PK\x03\x04", "a ZIP archive, or a document in one"),
        (b"\x1f\x8b", "compressed with gzip"),
        (b"\xfd7zXZ\0", "compressed with xz"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
        (b"BZh", "compressed with bzip2"),
        (b"%PDF-", "a PDF document"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\xff\xfe\0\0", "UTF-32 text"),
    ];
    let kind = KINDS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, kind)| *kind);
    let zeros = |odd: usize| head.iter().skip(odd).step_by(2).filter(|byte| **byte == 0).count();
    let half = head.len() / 2;
    // Latin text in UTF-16 has a zero in every second byte.
    let is_wide = half >= 4 && (zeros(0) * 10 > half * 9) != (zeros(1) * 10 > half * 9);
    let kind = kind.or(is_wide.then_some("UTF-16 text without a byte order mark"));
    let kind = kind.map(|kind| format!("; it looks like {kind}")).unwrap_or_default();
    let first: Vec<String> = head.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("`{shown}` is not text but binary, {size_bytes} bytes{kind}; it begins with {}", first.join(" "))
}

/// The requested lines, collected from a pass over the whole file.
struct Page {
    first: usize,
    wanted: usize,
    text: String,
    /// The last line in `text`.
    last: usize,
    /// How many lines were read so far.
    total: usize,
    full: bool,
    /// The encoding, if it is not UTF-8.
    encoding: Option<Encoding>,
    /// Whether the rest was not read, because the file is very large.
    has_more: bool,
    redactor: Redactor,
}

impl Page {
    fn new(first: usize, wanted: usize, redactor: Redactor) -> Self {
        Self {
            first,
            wanted,
            text: String::new(),
            last: 0,
            total: 0,
            full: false,
            encoding: None,
            has_more: false,
            redactor,
        }
    }

    fn fill(
        &mut self,
        mut from: impl BufRead,
        cancel: &CancellationToken,
        shown: &str,
    ) -> Result<(), ToolsError> {
        let (mut line, mut line_bytes, mut read_bytes) = (Vec::new(), 0, 0);
        let held_max = LINE_BYTES_MAX + self.redactor.reach();
        loop {
            if cancel.is_cancelled() {
                return Err(ToolsError::Cancelled);
            }
            let chunk = from.fill_buf().map_err(|error| ToolsError::io(shown, error))?;
            if chunk.is_empty() {
                break;
            }
            let chunk_bytes = chunk.len();
            for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
                let body = piece.strip_suffix(b"\n").unwrap_or(piece);
                let room = held_max.saturating_sub(line.len()).min(body.len());
                line.extend_from_slice(&body[..room]);
                line_bytes += body.len();
                if body.len() < piece.len() {
                    self.line(&line, line_bytes);
                    line.clear();
                    line_bytes = 0;
                }
            }
            from.consume(chunk_bytes);
            read_bytes += chunk_bytes;
            if read_bytes >= COUNTED_BYTES && self.is_complete() {
                self.has_more = true;
                return Ok(());
            }
        }
        if line_bytes > 0 {
            self.line(&line, line_bytes);
        }
        Ok(())
    }

    /// Whether no later line is shown.
    fn is_complete(&self) -> bool {
        self.full || self.total.saturating_add(1) >= self.first.saturating_add(self.wanted)
    }

    /// Processes the next line; `line` is at least the part that is shown.
    fn line(&mut self, line: &[u8], line_bytes: usize) {
        self.total += 1;
        if self.full || self.total < self.first || self.total >= self.first.saturating_add(self.wanted) {
            return;
        }
        let line = match line_bytes > LINE_BYTES_MAX {
            true => &line[..line_end(line, LINE_BYTES_MAX, &self.redactor)],
            false => line,
        };
        let line = if self.total == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        if line_bytes > LINE_BYTES_MAX
            && let Err(error) = std::str::from_utf8(line)
            && error.error_len().is_none()
        {
            // The cut has split a character.
            line = &line[..error.valid_up_to()];
        }
        let (text, is_utf8) = encoding::line(line);
        if !is_utf8 {
            self.encoding = Some(Encoding::Windows1252);
        }
        let mut text = text.into_owned();
        if line_bytes > LINE_BYTES_MAX {
            text.push_str(&format!(" [... line of {line_bytes} bytes cut]"));
        }
        let numbered = format!("{}\t{text}\n", self.total);
        if self.text.len() + numbered.len() > BODY_BYTES_MAX && self.last > 0 {
            self.full = true;
            return;
        }
        self.text.push_str(&numbered);
        self.last = self.total;
    }

    fn finish(mut self, shown: &str, size_bytes: u64) -> Result<String, ToolsError> {
        if self.total == 0 && self.first == 1 {
            return Ok(format!("`{shown}` is empty"));
        }
        if self.first > self.total {
            let text = format!("`{shown}` has {} lines; `offset` {} is past its end", self.total, self.first);
            return Err(ToolsError::Refused(text));
        }
        if self.last < self.total || self.has_more {
            let (first, last, next) = (self.first, self.last, self.last + 1);
            let total = match self.has_more {
                true => format!("of many; the file has {size_bytes} bytes"),
                false => format!("of {}", self.total),
            };
            self.text.push_str(&format!("[lines {first} to {last} {total}; continue with offset {next}]\n"));
        }
        match self.encoding {
            Some(Encoding::Windows1252) => {
                self.text.push_str("[not UTF-8: read as Windows-1252; `edit` and `write` keep that]\n");
            }
            Some(encoding) => {
                self.text.push_str(&format!("[{}; `edit` and `write` keep that]\n", encoding.as_str()));
            }
            None => {}
        }
        Ok(self.text)
    }
}

fn image(
    shown: &str,
    media_type: &str,
    mut bytes: Vec<u8>,
    file: File,
    size_bytes: u64,
) -> Result<ToolOutput, ToolsError> {
    let too_large = || {
        let limit = IMAGE_BYTES_MAX;
        ToolsError::Refused(format!(
            "`{shown}` is an image of {size_bytes} bytes; at most {limit} can be shown"
        ))
    };
    if size_bytes > IMAGE_BYTES_MAX {
        return Err(too_large());
    }
    // The file may be growing while it is read.
    file.take(IMAGE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| ToolsError::io(shown, error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > IMAGE_BYTES_MAX) {
        return Err(too_large());
    }
    let output = ToolOutput::text(format!("`{shown}`: {media_type}, {} bytes", bytes.len()));
    let image = Image::new(&bytes).map_err(|error| ToolsError::Refused(format!("`{shown}`: {error}")))?;
    Ok(output.image(image))
}
