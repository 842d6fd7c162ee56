//! Which sessions a client asks for, in both protocols.
//!
//! Invariants: a page is what the runtime lists, and says where the next one begins.

use std::collections::BTreeMap;

use greenroom::{Cursor, Order, Runtime};
use serde::Deserialize;
use serde_json::{Value, json};

/// The parameters of a list: all sessions, by id, where nothing is said.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct List {
    /// The most sessions of a page.
    limit: Option<usize>,
    /// Where the page before ended: its `next`.
    after: Option<String>,
    order: Option<Order>,
    /// Only those with all of these labels.
    labels: BTreeMap<String, String>,
    /// Only those whose work is not done.
    unfinished: bool,
    /// Only those that no other session's agent called.
    roots: bool,
    /// Only those below this session.
    tree: Option<String>,
}

impl List {
    /// From the pairs of a URL's query; a label is `label=name:value`.
    pub(crate) fn from_pairs(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut list = Self::default();
        for (name, value) in pairs {
            let wrong = || format!("{name}={value:?} is not understood");
            match name.as_str() {
                "limit" => list.limit = Some(value.parse().map_err(|_| wrong())?),
                "after" => list.after = Some(value),
                "order" => list.order = Some(value.parse().map_err(|_| wrong())?),
                "unfinished" => list.unfinished = value.parse().map_err(|_| wrong())?,
                "roots" => list.roots = value.parse().map_err(|_| wrong())?,
                "tree" => list.tree = Some(value),
                "label" => {
                    let (name, value) = value.split_once(':').ok_or_else(wrong)?;
                    list.labels.insert(name.to_owned(), value.to_owned());
                }
                _ => return Err(format!("there is no parameter {name:?}")),
            }
        }
        Ok(list)
    }

    /// The page: `sessions`, and `next` where more may follow.
    pub(crate) async fn page(self, runtime: &Runtime) -> Result<Value, Refused> {
        let mut query = if self.unfinished { runtime.unfinished() } else { runtime.sessions() };
        if self.roots {
            query = query.roots();
        }
        if let Some(root) = self.tree {
            query = query.tree(root);
        }
        for (name, value) in self.labels {
            query = query.label(name, value);
        }
        if let Some(order) = self.order {
            query = query.order(order);
        }
        if let Some(after) = self.after {
            let cursor: Cursor = after
                .parse()
                .map_err(|_| Refused::Parameters(format!("{after:?} is not the `next` of a page")))?;
            query = query.after(cursor);
        }
        if let Some(limit) = self.limit {
            query = query.limit(limit);
        }
        let sessions = query.await.map_err(Refused::Failed)?;
        let last = sessions.last().filter(|_| self.limit == Some(sessions.len()));
        let next = last.map(|last| last.cursor().to_string());
        let mut page = json!({ "sessions": sessions });
        if let Some(next) = next {
            page["next"] = next.into();
        }
        Ok(page)
    }
}

/// Why there is no page.
pub(crate) enum Refused {
    /// The parameters cannot be understood.
    Parameters(String),
    /// The runtime failed.
    Failed(greenroom::Error),
}
