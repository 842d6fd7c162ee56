//! The definition in use, the next one, and the session's previous model.
//!
//! Invariants: it dereferences to the current definition; another one applies only after the run, so a run's
//! model never changes by another caller's settings.

use std::ops::Deref;
use std::sync::Arc;

use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::log::Log;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::Window;
use greenroom_provider::ResentReasoning;

use super::definition::Definition;
use crate::core::deps::Deps;
use crate::values::error::Result;

#[cfg(test)]
mod tests;

/// The definition that a session works with.
pub(super) struct InUse {
    now: Definition,
    /// The definition that applies after the run: with another model, for example.
    next: Option<Definition>,
    /// The model that answered last, if another one answers next.
    left: Option<LeftModel>,
    /// The reasoning that the tracker counts as resent.
    counted_with: ResentReasoning,
    /// Warnings about the model, reported once, when a run starts.
    warnings: Vec<String>,
}

/// The definitions of a session that sleeps during its run.
pub(super) struct KeptDefinitions {
    now: Definition,
    next: Option<Definition>,
}

/// The differences after a new definition was adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenOver {
    /// Another model answers.
    pub(super) is_switch: bool,
    /// A compaction that failed before may work now.
    pub(super) may_compact: bool,
}

/// The model that answered last in a session that continues with another one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LeftModel {
    pub(super) provider: String,
    pub(super) model: String,
    /// Its window in tokens, if the session knows its setting.
    pub(super) window: Option<u64>,
}

impl Deref for InUse {
    type Target = Definition;

    fn deref(&self) -> &Definition {
        &self.now
    }
}

impl InUse {
    /// Creates the state of a session that is opened with this definition and log, and whose tracker counts
    /// this reasoning.
    pub(super) fn open(now: Definition, log: &Log, counted_with: ResentReasoning) -> Self {
        let left = LeftModel::of(log, now.provider(), now.model());
        let warnings = now.warnings();
        Self { now, next: None, left, counted_with, warnings }
    }

    /// Returns the part that is kept while the session sleeps during its run.
    pub(super) fn kept(&mut self) -> KeptDefinitions {
        KeptDefinitions { now: self.now.clone(), next: self.next.take() }
    }

    /// Continues with the kept part.
    pub(super) fn go_on(&mut self, kept: KeptDefinitions) {
        (self.now, self.next) = (kept.now, kept.next);
    }

    /// Adopts a definition for the session with this log.
    pub(super) fn take(&mut self, new: Definition, log: &Log) -> TakenOver {
        let old = std::mem::replace(&mut self.now, new);
        let is_switch = !self.now.is_same_model(&old);
        if is_switch && !log.is_empty() {
            // The model that answered last, however many were configured since.
            let left = self.left.take().or_else(|| {
                let left = LeftModel {
                    provider: old.provider().to_owned(),
                    model: old.model().to_owned(),
                    window: old.window.tokens,
                };
                Some(left).filter(|left| !has_only_imported_answers(log, &left.provider))
            });
            self.left = left.filter(|left| !left.is(self.now.provider(), self.now.model()));
        }
        TakenOver { is_switch, may_compact: is_switch || *self.now.settings != *old.settings }
    }

    /// Sets the definition that applies after the run; `None` keeps the current one.
    pub(super) fn set_next(&mut self, next: Option<Definition>) {
        self.next = next;
    }

    /// Takes the definition that applies after the run, if there is one.
    pub(super) fn take_next(&mut self) -> Option<Definition> {
        self.next.take()
    }

    /// Switches the run to this definition. The previous one applies again after the run, unless another one
    /// was set.
    pub(super) fn fall_back(&mut self, fallback: Definition) {
        let home = std::mem::replace(&mut self.now, fallback);
        // If the session was opened with another model in the meantime, that one applies after the run.
        self.next.get_or_insert(home);
    }

    /// Returns the previous model, if the new one has not answered yet.
    pub(super) fn left(&self) -> Option<&LeftModel> {
        self.left.as_ref()
    }

    /// Notes that the new model has answered.
    pub(super) fn answered(&mut self) {
        self.left = None;
    }

    /// Returns the reasoning that the tracker counts as resent.
    pub(super) fn counted_with(&self) -> &ResentReasoning {
        &self.counted_with
    }

    /// Sets the reasoning that the tracker counts. Returns whether it has changed.
    pub(super) fn set_counted_with(&mut self, resent: &ResentReasoning) -> bool {
        let is_other = self.counted_with != *resent;
        self.counted_with.clone_from(resent);
        is_other
    }

    /// Takes the unreported warnings about the model.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Repeats the warnings about the model at the start of the next run.
    pub(super) fn warn_again(&mut self) {
        self.warnings = self.now.warnings();
    }

    /// Applies settings of the runtime, from the definition that applies after the run.
    pub(super) fn set_settings(&mut self, settings: Arc<CompactionSettings>) {
        self.now.settings = settings;
    }

    /// Sets the version of the settings it was resolved with.
    pub(super) fn set_settings_version(&mut self, version: u64) {
        self.now.settings_version = version;
    }

    /// Like [`Definition::refresh_window`]. Returns the previous window if it has changed.
    pub(super) fn refresh_window(&mut self, deps: &Deps, pinned_tokens: u64) -> Option<Window> {
        let before = self.now.window;
        self.now.refresh_window(deps, pinned_tokens).then_some(before)
    }

    /// Like [`Definition::set_instructions`].
    ///
    /// # Errors
    /// They leave no room in the window.
    pub(super) fn set_instructions(&mut self, text: &Arc<str>, pinned_tokens: u64) -> Result<bool> {
        self.now.set_instructions(text, pinned_tokens)
    }
}

/// Whether there are answers, and none is by this provider: the one with which a session was imported has answered
/// nothing in it, and may be reached nowhere.
fn has_only_imported_answers(log: &Log, provider: &str) -> bool {
    let mut answers = log.path().iter().rev().filter_map(|entry| entry.kind.as_answer()).peekable();
    answers.peek().is_some() && !answers.any(|answer| answer.provider == provider)
}

impl LeftModel {
    /// Returns the previous model of a session with this log that continues with another one.
    fn of(log: &Log, provider: &str, model: &str) -> Option<Self> {
        let head = log.head();
        if log.is_empty() {
            return None;
        }
        let path = log.path();
        if !head.is_model(provider, model) {
            let (provider, model) = (head.provider.to_string(), head.model.to_string());
            let is_imported = has_only_imported_answers(log, &provider);
            return Some(Self { provider, model, window: head.window }).filter(|_| !is_imported);
        }
        // The switch was recorded, and nothing was answered since.
        let change = path.iter().rposition(|entry| matches!(entry.kind, EntryKind::ModelChange { .. }))?;
        let newest = path.iter().rposition(|entry| entry.kind.is_whole_answer())?;
        let answer = path[newest].kind.as_answer().filter(|_| newest < change)?;
        Some(Self { provider: answer.provider.clone(), model: answer.model.clone(), window: None })
    }

    fn is(&self, provider: &str, model: &str) -> bool {
        (self.provider.as_str(), self.model.as_str()) == (provider, model)
    }
}
