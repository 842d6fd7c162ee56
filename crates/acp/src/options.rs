//! What can be chosen for a session at the editor: the mode of its permissions, the model, and the effort.
//!
//! Invariants: the current value is always among the choices.

use agent_client_protocol::v1::schema::{
    SessionConfigOption, SessionConfigOptionCategory, SessionConfigSelectOption, SessionMode, SessionModeState,
};
use greenroom::ReasoningEffort;
use greenroom::permissions::Mode;

#[cfg(test)]
mod tests;

/// The ids of the options.
pub(crate) const MODE: &str = "mode";
pub(crate) const MODEL: &str = "model";
pub(crate) const EFFORT: &str = "effort";
/// The value of the effort that the provider chooses.
const DEFAULT: &str = "default";

/// The current choices of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    /// The mode; `None` without tools.
    pub(crate) mode: Option<Mode>,
    pub(crate) model: String,
    /// The models that the provider lists.
    pub(crate) models: Vec<String>,
    pub(crate) effort: Option<ReasoningEffort>,
}

/// What the user chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    Mode(Mode),
    Model(String),
    Effort(Option<ReasoningEffort>),
}

impl Choice {
    /// Reads a choice.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn read(id: &str, value: &str) -> Result<Self, String> {
        match id {
            MODE => mode(value).map(Self::Mode),
            MODEL => Ok(Self::Model(value.to_owned())),
            EFFORT if value == DEFAULT => Ok(Self::Effort(None)),
            EFFORT => value.parse().map(|effort| Self::Effort(Some(effort))),
            _ => Err(format!("there is no option {id:?}; there are {MODE}, {MODEL} and {EFFORT}")),
        }
    }
}

/// Reads a mode.
///
/// # Errors
/// There is no such mode.
pub(crate) fn mode(id: &str) -> Result<Mode, String> {
    let known = || Mode::ALL.map(Mode::as_str).join(", ");
    Mode::ALL
        .into_iter()
        .find(|mode| mode.as_str() == id)
        .ok_or_else(|| format!("there is no mode {id:?}; there are {}", known()))
}

fn efforts() -> Vec<String> {
    [DEFAULT.to_owned()].into_iter().chain(ReasoningEffort::ALL.map(|effort| effort.as_str().to_owned())).collect()
}

fn named(mode: Mode) -> (&'static str, &'static str) {
    match mode {
        Mode::ReadOnly => ("Read only", "No file is changed and no command runs"),
        Mode::Ask => ("Ask", "Asks before it changes a file or runs a command"),
        Mode::AcceptEdits => ("Accept edits", "Changes files of the folder; asks before it runs a command"),
        Mode::Everything => ("Everything", "Changes files and runs commands without asking"),
    }
}

impl Choices {
    /// Returns the modes.
    pub(crate) fn modes(&self) -> Option<SessionModeState> {
        let modes = Mode::ALL.map(|mode| {
            let (name, description) = named(mode);
            SessionMode::new(mode.as_str(), name).description(description.to_owned())
        });
        Some(SessionModeState::new(self.mode?.as_str(), modes.to_vec()))
    }

    /// Returns the options.
    pub(crate) fn options(&self) -> Vec<SessionConfigOption> {
        let mut options = Vec::new();
        if let Some(mode) = self.mode {
            let modes = Mode::ALL.map(|mode| {
                let (name, description) = named(mode);
                SessionConfigSelectOption::new(mode.as_str(), name).description(description.to_owned())
            });
            let option = SessionConfigOption::select(MODE, "Mode", mode.as_str(), modes.to_vec());
            options.push(option.category(SessionConfigOptionCategory::Mode));
        }
        let is_listed = self.models.contains(&self.model);
        let models = Some(&self.model).filter(|_| !is_listed).into_iter().chain(&self.models);
        let models = models.map(|model| SessionConfigSelectOption::new(model.clone(), model.clone()));
        let models: Vec<SessionConfigSelectOption> = models.collect();
        let option = SessionConfigOption::select(MODEL, "Model", self.model.clone(), models);
        options.push(option.category(SessionConfigOptionCategory::Model));
        let now = self.effort.map_or_else(|| DEFAULT.to_owned(), |effort| effort.as_str().to_owned());
        let efforts = efforts().into_iter().map(|effort| SessionConfigSelectOption::new(effort.clone(), effort));
        let option = SessionConfigOption::select(EFFORT, "Effort", now, efforts.collect::<Vec<_>>());
        options.push(option.category(SessionConfigOptionCategory::ThoughtLevel));
        options
    }
}
