//! `greenroom import`: imports session files of other systems into the store.
//!
//! Invariants: a file becomes one complete session, or none; an existing session is never changed.

use std::path::Path;

use anyhow::Result;
use greenroom_files as files;
use greenroom_formats::{FILE_BYTES_MAX, ImportOptions, Imported, import};
use greenroom_server::Client;
use greenroom_server::operations::{GetSession, ImportSession};
use greenroom_terminal::Screen;
use greenroom_terminal::progress::Progress;
use serde_json::json;

use crate::args::{Global, ImportArgs};
use crate::error;
use crate::host::{self, Changes};

/// The longest session id, in characters.
const ID_CHARS_MAX: usize = 64;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ImportArgs) -> Result<u8> {
    let mut target = Changes::open(global).await?;
    let mut screen = Screen::stdout(global.color);
    let mut failed = None;
    let files = args.files.len();
    for (number, file) in args.files.iter().enumerate() {
        let what = format!("importing {} of {files}: {}", number + 1, file.display());
        let progress = Progress::start(global.color, move || what.clone());
        let taken = one(global, &mut target, file).await;
        progress.end().await;
        let (id, Counted { entries, imported }) = match taken {
            Ok(one) => one,
            // The other files are imported anyway; the command reports the last failure.
            Err(error) => {
                if let Some(earlier) = failed.replace(error) {
                    Screen::stderr(global.color).line(format!("greenroom: {}", error::line(&earlier)))?;
                }
                continue;
            }
        };
        if args.json {
            let line = json!({
                "session_id": id, "format": imported.format.as_str(), "entries": entries,
                "messages": imported.messages, "skipped": imported.skipped, "repaired": imported.repaired,
                "warnings": imported.warnings,
            });
            screen.json(&line)?;
        } else {
            screen.line(format!(
                "{id}: {} messages from {} ({}), {} lines left out, {} repairs",
                imported.messages,
                file.display(),
                imported.format.as_str(),
                imported.skipped,
                imported.repaired
            ))?;
            for warning in &imported.warnings {
                screen.line(format!("  {warning}"))?;
            }
        }
    }
    target.end().await?;
    failed.map_or(Ok(0), Err)
}

/// Imports a file with this text, which is read again if the import was requested before, with an unknown result. Then an
/// existing session is that result.
async fn take(client: &Client, id: &str, file: &Path, text: &mut Option<String>) -> Result<Taken> {
    if client.find(GetSession { session_id: id.to_owned() }).await?.is_some() {
        return Ok(if text.is_none() { Taken::Here } else { Taken::Before });
    }
    let text = match text.take() {
        Some(text) => text,
        None => read_text(file)?,
    };
    client.call(ImportSession { session_id: id.to_owned(), text }).await?;
    Ok(Taken::Here)
}

/// Imports one file; into another host, or into the store, if the host dies in the meantime.
async fn one(global: &Global, target: &mut Changes, file: &Path) -> Result<(String, Counted)> {
    let text = read_text(file)?;
    let imported = import(&text, ImportOptions::default())
        .map_err(|error| error::usage(format!("{}: {error}", file.display())))?;
    let id = session_id(file, &imported);
    let counted = Counted::of(imported);
    let mut text = Some(text);
    loop {
        match take(&target.client, &id, file, &mut text).await {
            Ok(Taken::Here) => return Ok((id, counted)),
            Ok(Taken::Before) => {
                return Err(error::usage(format!(
                    "{}: there is a session {id} already, and it is not changed; `greenroom delete {id}` deletes that \
                     session",
                    file.display()
                )));
            }
            Err(error) if host::is_gone(&error) => *target = Changes::open(global).await?,
            Err(error) => return Err(error.context(file.display().to_string())),
        }
    }
}

/// An imported file without its entries, which take several times its size in memory.
struct Counted {
    entries: usize,
    /// Everything else.
    imported: Imported,
}

impl Counted {
    fn of(mut imported: Imported) -> Self {
        let entries = std::mem::take(&mut imported.entries).len();
        Self { entries, imported }
    }
}

/// Where a session with a file's id comes from.
enum Taken {
    /// From this import.
    Here,
    /// It existed before.
    Before,
}

/// Reads a session file: a regular file, up to the size limit of the formats.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    let bytes_max = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    files::read(file, bytes_max).map_err(|error| error::usage(format!("read {}: {error}", file.display())))
}

/// Reads the text of a session file. What is not UTF-8 is replaced.
fn read_text(file: &Path) -> Result<String> {
    let bytes = read(file)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Returns the session's own id if it is valid here, or else the file's name.
fn session_id(file: &Path, imported: &Imported) -> String {
    let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let source = imported.session_id.clone().unwrap_or(name);
    let plain: String = source
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '-' })
        .take(ID_CHARS_MAX)
        .collect();
    // An id must not start with a dot, and a dash would look like a flag.
    let plain = plain.trim_start_matches(['.', '-']);
    if plain.is_empty() { "imported".to_owned() } else { plain.to_owned() }
}
