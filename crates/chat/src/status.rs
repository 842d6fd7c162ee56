//! The status line: the context's fill level, cost, model and queue.
//!
//! Invariants: the line fits any width: the least important parts are omitted first.

use greenroom::permissions::Mode;
use greenroom_kernel::usage::{ContextUsage, WindowSource};
use greenroom_terminal::format;
use greenroom_terminal::row::{Color, Look, Row};

#[cfg(test)]
mod tests;

/// From this percentage of the window, the context counts as filling up.
pub(crate) const FILLING: f64 = 75.0;
/// From this percentage, it counts as nearly full.
pub(crate) const NEARLY_FULL: f64 = 90.0;
/// From this percentage, it counts as full.
const FULL: f64 = 95.0;
/// The width of the bar, if it fits.
const BAR: usize = 12;

/// The contents of the status line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status {
    pub(crate) context: ContextUsage,
    /// The size at which a compaction triggers, in tokens; 0 for none.
    pub(crate) trigger: u64,
    pub(crate) cost_microdollars: u64,
    /// How many of the billed tokens are estimated; above 0, the cost is an estimate.
    pub(crate) estimated_tokens: u64,
    pub(crate) model: String,
    pub(crate) effort: Option<String>,
    /// The mode of the session's permissions; `None` if there are none.
    pub(crate) mode: Option<Mode>,
    /// The number of queued inputs.
    pub(crate) queued: usize,
    /// The branch of the folder's repository, if it is one.
    pub(crate) git_branch: Option<String>,
    /// The entry from which the conversation branched off, if it did.
    pub(crate) branch: Option<u64>,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            context: ContextUsage {
                tokens: 0,
                usage_tokens: 0,
                trailing_tokens: 0,
                window: None,
                window_source: WindowSource::Unknown,
            },
            trigger: 0,
            cost_microdollars: 0,
            estimated_tokens: 0,
            model: String::new(),
            effort: None,
            mode: None,
            queued: 0,
            git_branch: None,
            branch: None,
        }
    }
}

impl Status {
    /// Returns the line.
    pub(crate) fn row(&self, width: usize) -> Row {
        let percent = self.context.percent();
        let look = percent.map_or(Look::DIM, look_of);
        let mut fill = Row::default();
        if let Some(window) = self.context.window
            && width >= 60
        {
            // Without a trigger there is no mark.
            let mark = if self.trigger == 0 { window } else { self.trigger };
            let bar = format::bar(self.context.tokens, window, mark, BAR);
            fill.push(&format!("{bar} "), look);
        }
        let text = match (percent, self.context.window) {
            (Some(percent), Some(window)) => {
                format!("{percent:.0} % {}/{}", format::short(self.context.tokens), format::short(window))
            }
            (Some(_) | None, Some(_) | None) => format!("{} tokens", format::short(self.context.tokens)),
        };
        fill.push(&text, look);
        // Parts in order of importance.
        let mut parts = Vec::new();
        if self.queued > 0 {
            parts.push((format!("{} queued", self.queued), Look::WARN));
        }
        if let Some(mode) = self.mode {
            let look = match mode {
                Mode::Everything => Look::BAD,
                Mode::AcceptEdits => Look::WARN,
                Mode::Ask | Mode::ReadOnly => Look::DIM,
            };
            parts.push((mode.as_str().replace('_', " "), look));
        }
        let effort = self.effort.as_ref().map(|effort| format!(" ({effort})")).unwrap_or_default();
        parts.push((format!("{}{effort}", self.model), Look::DIM));
        if self.cost_microdollars > 0 {
            let cost = format::about(format::cents(self.cost_microdollars), self.estimated_tokens);
            parts.push((cost, Look::DIM));
        }
        if let Some(entry) = self.branch {
            parts.push((format!("branch from {entry}"), Look::DIM));
        }
        if let Some(branch) = &self.git_branch {
            parts.push((format!("⎇ {branch}"), Look::DIM));
        }
        let mut row = Row::plain("  ").then(fill);
        for (text, look) in parts {
            let more = Row::new(" · ", Look::DIM).and(&text, look);
            if row.width() + more.width() <= width {
                row = row.then(more);
            }
        }
        row.cut(width)
    }
}

/// Returns the style of a fill level.
pub(crate) fn look_of(percent: f64) -> Look {
    if percent >= FULL {
        Look { bold: true, reverse: true, ..Look::BAD }
    } else if percent >= NEARLY_FULL {
        Look::BAD
    } else if percent >= FILLING {
        Look::WARN
    } else {
        Look::of(Color::Green)
    }
}
