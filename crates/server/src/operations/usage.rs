//! Spending by label and time.
//!
//! Invariants: a client that is confined to a label is told what was spent with that label, and no more.

use greenroom::{Error, Period, Spending};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, CallScope, Label, Operation, Performed, Reach, Refused, Route};
use crate::problem::{Problem, ProblemKind};

/// Reports what was spent by hour or day: by all sessions together, or by the values of a label. What a deleted session spent
/// remains in it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportUsage {
    /// The name of a label: what each of its values spent. A client that is confined to a label gets that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// A value of the label: only what it spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Whether hours or days are reported. Days are those of UTC.
    #[serde(default = "day")]
    pub per: Period,
    /// How many, the current one included. At most 48 hours and 400 days are kept.
    #[serde(default = "one")]
    pub last: u64,
}

fn day() -> Period {
    Period::Day
}

fn one() -> u64 {
    1
}

impl Default for ReportUsage {
    fn default() -> Self {
        Self { by: None, value: None, per: day(), last: one() }
    }
}

/// The spending.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct UsageReported {
    /// By value and time. Hours and days without spending are left out.
    pub spending: Vec<Spending>,
}

impl ReportUsage {
    /// The label that is reported: the requested one, unless the client is confined to another.
    fn label_for(&self, within: Option<&Label>) -> Result<(Option<String>, Option<String>), Refused> {
        if self.value.is_some() && self.by.is_none() {
            return Err(Refused::Parameters("`value` needs `by`, the name of its label".to_owned()));
        }
        let Some(Label { name, value }) = within else { return Ok((self.by.clone(), self.value.clone())) };
        let is_its_own = self.by.as_ref().is_none_or(|label| label == name)
            && self.value.as_ref().is_none_or(|wanted| wanted == value);
        if is_its_own {
            return Ok((Some(name.clone()), Some(value.clone())));
        }
        let reason = "the token is confined to a label, and this request concerns another one";
        Err(Refused::Problem(Box::new(Problem::new(ProblemKind::Forbidden, reason))))
    }
}

impl Operation for ReportUsage {
    operation!("usage/report", Route::read_within(Reach::Label, "/usage"), UsageReported);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let query = match self.label_for(scope.within.as_deref())? {
            (None, _) => scope.runtime.spending(),
            (Some(label), None) => scope.runtime.spending().by(label),
            (Some(label), Some(value)) => scope.runtime.spending().of(label, value),
        };
        let query = query.per(self.per).last(self.last);
        Ok(Answer::Later(Box::pin(async move {
            Ok::<_, Error>(UsageReported { spending: query.await? }).map_err(Refused::from)
        })))
    }
}
