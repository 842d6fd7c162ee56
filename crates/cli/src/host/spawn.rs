//! Hosts that a client starts in the background.
//!
//! Invariants: a host that dies at once is replaced a few times, after growing pauses, but not indefinitely.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom_files as files;
use greenroom_terminal::screen::one_line;
use greenroom_tools::background;
use tokio::time::Instant;

use super::error::Unreached;
use super::log::{HOST_LOG_BYTES_MAX, PROCESS};
use super::{LOG_FILE, READY};
use crate::args::{Global, HostArgs};
use crate::config::{Config, RetentionConfig};

#[cfg(test)]
mod tests;

/// How many hosts may die as they start before this is reported.
const DEATHS_MAX: u32 = 4;
/// The pause between the first and the second host. Each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(150);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How many columns of a host's last message are shown.
const WORDS_COLUMNS: usize = 300;

/// The settings that a host needs before a client connects.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// How long it stays up idle, in seconds.
    pub(crate) idle_s: u64,
    /// The maximum number of runs and inputs in all sessions together; 0 for no limit.
    pub(crate) inputs_max: usize,
    /// The maximum number of sessions with actors in memory; 0 for no limit.
    pub(crate) live_sessions_max: usize,
    /// Which sessions it keeps.
    pub(crate) retention: RetentionConfig,
}

impl Terms {
    /// Returns the settings of this configuration.
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            idle_s: config.host.idle_s,
            inputs_max: config.limits.inputs_max.unwrap_or(0),
            live_sessions_max: config.limits.live_sessions_max.unwrap_or(0),
            retention: config.retention.clone(),
        }
    }

    /// Returns the settings from a client that started this process and has read the configuration, so it is
    /// not read again.
    pub(crate) fn told(args: &HostArgs) -> Option<Self> {
        let HostArgs { idle, inputs_max, live_sessions_max, retention, .. } = args;
        let (idle_s, inputs_max, live_sessions_max) = ((*idle)?, (*inputs_max)?, (*live_sessions_max)?);
        // Whoever wrote it had read a valid configuration.
        let retention =
            retention.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        Some(Self { idle_s, inputs_max, live_sessions_max, retention })
    }

    fn arguments(&self) -> Vec<OsString> {
        let Self { idle_s, inputs_max, live_sessions_max, retention } = self;
        let [idle, inputs, live] =
            [idle_s.to_string(), inputs_max.to_string(), live_sessions_max.to_string()];
        let mut arguments: Vec<OsString> = vec![
            "--idle".into(),
            idle.into(),
            "--inputs-max".into(),
            inputs.into(),
            "--live-sessions-max".into(),
            live.into(),
        ];
        if *retention != RetentionConfig::default() {
            arguments.extend(["--retention".into(), serde_json::json!(retention).to_string().into()]);
        }
        arguments
    }
}

/// The result of starting a host.
#[derive(Debug)]
pub(super) enum Started {
    Ready,
    /// It could not start, and said why.
    Failed(Unreached),
    /// It ended without a message.
    Died,
}

/// The hosts that a client has started.
#[derive(Debug, Default)]
pub(super) struct Starts {
    count: u32,
    /// How many of them died, or will count as dead if no host can be reached.
    deaths: u32,
    /// When the next one may be started.
    next: Option<Instant>,
}

impl Starts {
    /// Whether so many have died that no more are started, if no host can be reached now.
    pub(super) fn are_all_dead(&self) -> bool {
        self.deaths >= DEATHS_MAX
    }

    /// Whether the next one may be started.
    pub(super) fn is_time(&self) -> bool {
        self.next.is_none_or(|next| next <= Instant::now())
    }

    /// Starts a host for the store in this directory.
    ///
    /// # Errors
    /// The system refuses to start a process.
    pub(super) async fn start(&mut self, global: &Global, dir: &Path, terms: &Terms) -> Result<Started> {
        let started = start(global, dir, terms).await?;
        self.note(&started);
        Ok(started)
    }

    fn note(&mut self, started: &Started) {
        self.deaths += u32::from(!matches!(started, Started::Failed(_)));
        self.next = Some(Instant::now() + pause(self.count));
        self.count += 1;
    }
}

/// Returns the pause after this many hosts and one more.
fn pause(before: u32) -> Duration {
    PAUSE.saturating_mul(2_u32.saturating_pow(before)).min(PAUSE_MAX)
}

async fn start(global: &Global, dir: &Path, terms: &Terms) -> Result<Started> {
    let dir = std::path::absolute(dir)?;
    let mut arguments: Vec<OsString> = vec!["host".into(), "--data-dir".into(), dir.into_os_string()];
    arguments.extend(terms.arguments());
    arguments.extend(std::iter::repeat_n("-v".into(), usize::from(global.verbose)));
    let said = tokio::task::spawn_blocking(move || background::start(&arguments)).await?;
    Ok(became(&said.context("start a host in the background (use --no-host to run without one)")?))
}

/// Returns the result for a host that wrote this to its starter: the last line counts.
fn became(said: &str) -> Started {
    let last = said.lines().next_back().unwrap_or_default();
    if last == READY {
        return Started::Ready;
    }
    match last.split_once(' ').and_then(|(code, reason)| Some((code.parse().ok()?, reason))) {
        Some((code, reason)) => Started::Failed(Unreached::refused(code, reason)),
        None => Started::Died,
    }
}

/// Returns the last log message of the newest host of this store.
pub(super) fn last_words(dir: &Path) -> Option<String> {
    let log = files::read(&dir.join(LOG_FILE), HOST_LOG_BYTES_MAX).ok()?;
    newest_words(&String::from_utf8_lossy(&log))
}

fn newest_words(log: &str) -> Option<String> {
    let last = log.lines().rev().find(|line| !line.trim().is_empty())?;
    // A line starts with the seconds since the start.
    let (_, words) = last.trim().split_once(' ').filter(|_| !last.starts_with(PROCESS))?;
    Some(one_line(words, WORDS_COLUMNS))
}
