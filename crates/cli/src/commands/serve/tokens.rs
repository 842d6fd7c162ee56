//! The tokens of `serve`: its own, which is created at the first start in a file that only its owner can read, and those
//! of the configuration.
//!
//! Invariants: a token that others could know is refused, and no error shows a token.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_files::access::{self, Exposed, Need};
use greenroom_files::{self as files, FileError, private};
use greenroom_server::{TOKEN_CHARS_MIN, Token, check_token};
use greenroom_tools::printed;

use crate::agent::TOKEN_FILE;
use crate::config::layers::expanded;
use crate::config::surroundings::Surroundings;
use crate::config::{TokenConfig, digest};
use crate::error::{of_store, secrets, usage};

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: u64 = 4 * 1024;
/// How long a command that prints a token may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads the token in this file, or creates one of 256 bits.
pub(super) fn own(path: &Path) -> Result<String> {
    let context = || format!("keep the token in {}", path.display());
    match known(path)? {
        Some(token) if token.is_empty() => {
            std::fs::remove_file(path).map_err(|error| of_store("remove", path, &error))?;
        }
        Some(token) => return Ok(token),
        None => {}
    }
    let mut bytes = [0u8; 32];
    let mut random = std::fs::File::open("/dev/urandom").context("open the system's random numbers")?;
    random.read_exact(&mut bytes).context("read the system's random numbers")?;
    let token = digest::hex(&bytes);
    let mut file = private::create_new(path).map_err(|error| of_store("create", path, &error))?;
    file.write_all(token.as_bytes()).with_context(context)?;
    secrets::note("serve_token", &token);
    Ok(token)
}

/// Reads the token in this file; `None` if it does not exist, and empty if it is.
fn known(path: &Path) -> Result<Option<String>> {
    let read = files::open(path, true).and_then(|(file, metadata)| {
        let bytes = files::read_all(file, TOKEN_BYTES_MAX)?;
        Ok((String::from_utf8_lossy(&bytes).into_owned(), metadata))
    });
    let (text, metadata) = match read {
        Ok(read) => read,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(FileError::Io(error)) => return Err(of_store("read", path, &error).into()),
        Err(error) => return Err(error).with_context(|| format!("keep the token in {}", path.display())),
    };
    // Editors and `echo` end a file with a line break.
    let token = text.trim_end_matches(['\n', '\r']);
    if !token.is_empty() {
        check_token_file(path, &metadata, token)?;
    }
    Ok(Some(token.to_owned()))
}

/// Checks the tokens that a server would have, without creating one. Commands that print a token are not run. Returns how
/// many tokens there are.
pub(crate) async fn check(
    path: &Path,
    tokens: &BTreeMap<String, TokenConfig>,
    surroundings: &Surroundings,
) -> Result<usize> {
    let own = known(path)?.filter(|token| !token.is_empty());
    let is_read = |token: &TokenConfig| token.token_command.is_none();
    let read = tokens.iter().filter(|(_, token)| is_read(token));
    let read = read.map(|(name, token)| (name.clone(), token.clone())).collect();
    further(&read, surroundings, own.as_deref().unwrap_or_default()).await?;
    Ok(tokens.len() + usize::from(own.is_some()))
}

/// Reads the tokens of the configuration. `own` is the server's own.
pub(super) async fn further(
    tokens: &BTreeMap<String, TokenConfig>,
    surroundings: &Surroundings,
    own: &str,
) -> Result<Vec<Token>> {
    let mut read = Vec::new();
    let mut named = vec![(own.to_owned(), format!("the server's own in the file {TOKEN_FILE}"))];
    for (name, token) in tokens {
        let secret = secret(token, surroundings)
            .await
            .map_err(|reason| usage(format!("serve.tokens.{name}: {reason}")))?;
        if let Some((_, other)) = named.iter().find(|(known, _)| *known == secret) {
            let reason = "so their rights are ambiguous; change one of them";
            return Err(usage(format!("serve.tokens.{name}: the token equals {other}, {reason}")));
        }
        named.push((secret.clone(), format!("that of serve.tokens.{name}")));
        read.push(Token { secret, right: token.right, within: token.label.clone() });
    }
    Ok(read)
}

/// # Errors
/// Why there is no token, without a part of it.
async fn secret(token: &TokenConfig, surroundings: &Surroundings) -> Result<String, String> {
    let (secret, source) = match token {
        TokenConfig { token_env: Some(variable), .. } => {
            let secret = surroundings
                .variable(variable)
                .ok_or_else(|| format!("the variable {variable} is not set"))?;
            (secret, format!("the variable {variable} is not used"))
        }
        TokenConfig { token_file: Some(file), .. } => {
            let path =
                expanded(file, surroundings).ok_or_else(|| format!("the folder of {file} is not known"))?;
            let (opened, metadata) =
                files::open(&path, true).map_err(|error| format!("{}: {error}", path.display()))?;
            let bytes = files::read_all(opened, TOKEN_BYTES_MAX)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            check_owner(&path, &metadata, "replace the token")?;
            let text = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
            (text, format!("{} is not used", path.display()))
        }
        TokenConfig { token_command: Some(command), .. } => {
            let variables = surroundings.for_own_commands();
            // Not the working folder: a project could change what the command does there.
            let home = surroundings.variable("HOME").unwrap_or_else(|| "/".to_owned());
            let printed = printed::first_line(command, Path::new(&home), &variables, COMMAND_TIMEOUT).await;
            (
                printed.map_err(|reason| format!("token_command {reason}"))?,
                "token_command is not used".to_owned(),
            )
        }
        TokenConfig { token_env: None, token_file: None, token_command: None, .. } => {
            return Err("it has no source".to_owned());
        }
    };
    match check_token(&secret) {
        Ok(()) => {
            secrets::note("serve_token", &secret);
            Ok(secret)
        }
        Err(error) => Err(format!("{source}: {error}")),
    }
}

/// Checks that only the user can know the token in the server's own file.
fn check_token_file(path: &Path, metadata: &Metadata, token: &str) -> Result<()> {
    let renew = format!("delete {}; the next start creates a new one", path.display());
    check_owner(path, metadata, &renew).map_err(usage)?;
    secrets::note("serve_token", token);
    check_token(token).map_err(|error| {
        usage(format!(
            "{} is not used: {error}; {renew}, or write one line of at least {TOKEN_CHARS_MIN} random characters \
             into it",
            path.display()
        ))
    })
}

/// Checks that nobody else can have read a file; `renew` is what to do if somebody can.
fn check_owner(path: &Path, metadata: &Metadata, renew: &str) -> Result<(), String> {
    let path = path.display();
    access::check(metadata, Need::Private).map_err(|exposed| match exposed {
        Exposed::Owner { .. } => format!("{path} is not used: {exposed}; {renew}"),
        Exposed::Permissions => format!(
            "{path} is not used: others can read or write it, so they may know the token; {renew}, or run `chmod 600 \
             {path}` if you are sure that nobody has read it"
        ),
    })
}
