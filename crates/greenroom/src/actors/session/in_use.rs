//! The definition that a session works with, the one that follows it, and the model that it left.
//!
//! Invariants: it reads as the definition that holds now; another one holds from the end of the run on, so that a run never
//! changes its model by somebody's setting.

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
    /// The one that holds from the end of the run on: another model, which the run does not know.
    next: Option<Definition>,
    /// The model that answered last, where the one that is to answer now is another.
    left: Option<LeftModel>,
    /// The reasoning that the tracker counts as sent back.
    counted_with: ResentReasoning,
    /// Warnings about the model, given once, when a run begins.
    warnings: Vec<String>,
}

/// The definitions of a session that sleeps in its run.
pub(super) struct KeptDefinitions {
    now: Definition,
    next: Option<Definition>,
}

/// What is other than before when a definition was taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TakenOver {
    /// Another model answers.
    pub(super) is_switch: bool,
    /// A compaction that failed may work now.
    pub(super) may_compact: bool,
}

/// The model that answered last in a session that goes on with another.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LeftModel {
    pub(super) provider: String,
    pub(super) model: String,
    /// Its window in tokens, where the session knows what was set for it.
    pub(super) window: Option<u64>,
}

impl Deref for InUse {
    type Target = Definition;

    fn deref(&self) -> &Definition {
        &self.now
    }
}

impl InUse {
    /// Of a session that is opened with this definition and log, and whose tracker counts this reasoning.
    pub(super) fn open(now: Definition, log: &Log, counted_with: ResentReasoning) -> Self {
        let left = LeftModel::of(log, now.provider(), now.model());
        let warnings = now.warnings();
        Self { now, next: None, left, counted_with, warnings }
    }

    /// What is kept of it while the session sleeps in its run.
    pub(super) fn kept(&mut self) -> KeptDefinitions {
        KeptDefinitions { now: self.now.clone(), next: self.next.take() }
    }

    /// Goes on with what was kept.
    pub(super) fn go_on(&mut self, kept: KeptDefinitions) {
        (self.now, self.next) = (kept.now, kept.next);
    }

    /// Takes over a definition, in a session that `is_new` where nothing is recorded yet.
    pub(super) fn take(&mut self, new: Definition, is_new: bool) -> TakenOver {
        let old = std::mem::replace(&mut self.now, new);
        let is_switch = !self.now.is_same_model(&old);
        if is_switch && !is_new {
            // Who answered last, however many were named since.
            let left = self.left.take().unwrap_or_else(|| LeftModel {
                provider: old.provider().to_owned(),
                model: old.model().to_owned(),
                window: old.window.tokens,
            });
            self.left = Some(left).filter(|left| !left.is(self.now.provider(), self.now.model()));
        }
        TakenOver { is_switch, may_compact: is_switch || *self.now.settings != *old.settings }
    }

    /// This definition holds from the end of the run on; `None`: the one that holds now.
    pub(super) fn set_next(&mut self, next: Option<Definition>) {
        self.next = next;
    }

    /// The definition that is to hold from the end of the run on, if another one is.
    pub(super) fn take_next(&mut self) -> Option<Definition> {
        self.next.take()
    }

    /// The run goes over to this definition. The one before holds again when it has ended, unless another one is to.
    pub(super) fn fall_back(&mut self, fallback: Definition) {
        let home = std::mem::replace(&mut self.now, fallback);
        // Who opened the session with another model meanwhile gets that one.
        self.next.get_or_insert(home);
    }

    /// The model that was left, and has not been followed by an answer of another.
    pub(super) fn left(&self) -> Option<&LeftModel> {
        self.left.as_ref()
    }

    /// The model that is to answer has answered.
    pub(super) fn answered(&mut self) {
        self.left = None;
    }

    /// The reasoning that the tracker counts as sent back.
    pub(super) fn counted_with(&self) -> &ResentReasoning {
        &self.counted_with
    }

    /// The tracker counts this reasoning from now on. Gives whether it counted other reasoning before.
    pub(super) fn set_counted_with(&mut self, resent: &ResentReasoning) -> bool {
        let is_other = self.counted_with != *resent;
        self.counted_with.clone_from(resent);
        is_other
    }

    /// The warnings about the model that nobody heard yet.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Whoever begins the next run hears the warnings about the model.
    pub(super) fn warn_again(&mut self) {
        self.warnings = self.now.warnings();
    }

    /// Takes over settings of the runtime, of the definition that holds from the end of the run on.
    pub(super) fn set_settings(&mut self, settings: Arc<CompactionSettings>) {
        self.now.settings = settings;
    }

    /// Takes note of which settings it was resolved with.
    pub(super) fn set_settings_version(&mut self, version: u64) {
        self.now.settings_version = version;
    }

    /// As [`Definition::refresh_window`]. Gives the window before, where it is another one now.
    pub(super) fn refresh_window(&mut self, deps: &Deps, pinned_tokens: u64) -> Option<Window> {
        let before = self.now.window;
        self.now.refresh_window(deps, pinned_tokens).then_some(before)
    }

    /// As [`Definition::set_instructions`].
    ///
    /// # Errors
    /// They leave no room in the window.
    pub(super) fn set_instructions(&mut self, text: &Arc<str>, pinned_tokens: u64) -> Result<bool> {
        self.now.set_instructions(text, pinned_tokens)
    }
}

impl LeftModel {
    /// The model that is left where a session with this log goes on with another model.
    fn of(log: &Log, provider: &str, model: &str) -> Option<Self> {
        let head = log.head();
        if log.is_empty() {
            return None;
        }
        if !head.is_model(provider, model) {
            let (provider, model) = (head.provider.clone(), head.model.clone());
            return Some(Self { provider, model, window: head.window });
        }
        // The switch was recorded, and then nobody answered.
        let path = log.path();
        let change = path.iter().rposition(|entry| matches!(entry.kind, EntryKind::ModelChange { .. }))?;
        let newest = path.iter().rposition(|entry| entry.kind.is_whole_answer())?;
        let answer = path[newest].kind.as_answer().filter(|_| newest < change)?;
        Some(Self { provider: answer.provider.clone(), model: answer.model.clone(), window: None })
    }

    fn is(&self, provider: &str, model: &str) -> bool {
        (self.provider.as_str(), self.model.as_str()) == (provider, model)
    }
}
