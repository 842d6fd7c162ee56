//! Teams: agents that hand a conversation to one another, by name, and the tools that their models use for
//! it.
//!
//! Invariants: agents name those to whom they may hand over, so two may name each other. The session's log
//! says which one answers, and a reopened team continues with that one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::entry::Sees;
use greenroom_kernel::{ToolResult, ToolSpec, ToolStatus};
use greenroom_tools::{Tool, ToolContext, ToolOutput};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::values::error::ConfigError;

/// The prefix of the tools that hand over a conversation.
const TOOL: &str = "transfer_to_";

/// An agent to which another may hand the conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandOffTo {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) sees: Sees,
}

impl HandOffTo {
    fn tool_name(&self) -> String {
        format!("{TOOL}{}", self.name)
    }
}

/// The agents of a team, by name.
pub(crate) struct Members {
    /// The name of the agent that answers first.
    first: String,
    agents: BTreeMap<String, Agent>,
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.agents.keys()).finish()
    }
}

/// Agents that hand a conversation to one another. A team is opened like an agent. Its first agent answers
/// until it or the program hands the conversation to another one, which then answers in the same session.
/// After a restart, the agent that answered last continues.
///
/// An agent's model gets a tool `transfer_to_…` for each agent that [`Agent::hand_off_to`] names.
///
/// ```
/// use greenroom::prelude::*;
///
/// let triage = Agent::new("gpt-5.5-mini")
///     .instructions("Find out what it is about.")
///     .hand_off_to("refunds", "Pays money back.", Sees::All);
/// let refunds = Agent::new("gpt-5.5")
///     .instructions("Pay back what is due.")
///     .hand_off_to("triage", "Everything else.", Sees::Last(6));
/// let team = Team::new("triage", triage).member("refunds", refunds);
/// # async fn example(runtime: Runtime, team: Team) -> Result<()> {
/// let session = runtime.open("customer-7", &team).await?;
/// println!("{}", session.prompt("I want my money back.").await?);
/// session.hand_off("triage", Sees::Summary).await?;
/// # Ok(()) }
/// ```
///
/// Messages that an agent does not see stay in the log. [`Sees::Last`] and [`Sees::Summary`] narrow the
/// context as a compaction does, and for later agents too;
/// [`SessionHandle::undo_compaction`](crate::SessionHandle::undo_compaction) widens it again, without
/// changing the answering agent. A branch that starts before a hand-off continues with the agent that
/// answered there.
#[derive(Debug, Clone)]
pub struct Team {
    members: Arc<Members>,
    problems: Vec<ConfigError>,
}

impl Team {
    /// Creates a team of one agent, which answers first.
    pub fn new(name: impl Into<String>, agent: Agent) -> Self {
        let first = name.into();
        let agents = BTreeMap::from([(first.clone(), agent)]);
        Self { members: Arc::new(Members { first, agents }), problems: Vec::new() }
    }

    /// Adds an agent. Opening a session refuses a team with duplicate names.
    #[must_use]
    pub fn member(mut self, name: impl Into<String>, agent: Agent) -> Self {
        let name = name.into();
        let Members { first, mut agents } = Arc::try_unwrap(self.members)
            .unwrap_or_else(|shared| Members { first: shared.first.clone(), agents: shared.agents.clone() });
        if agents.insert(name.clone(), agent).is_some() {
            self.problems.push(ConfigError::Team { reason: format!("it has two agents named {name:?}") });
        }
        self.members = Arc::new(Members { first, agents });
        self
    }

    fn problem(&self) -> Option<ConfigError> {
        let Members { agents, .. } = &*self.members;
        let named = agents.iter().flat_map(|(name, agent)| agent.hand_offs.iter().map(move |to| (name, to)));
        let unknown = named.filter(|(_, to)| !agents.contains_key(&to.name)).map(|(name, to)| {
            let known: Vec<&str> = agents.keys().map(String::as_str).collect();
            let reason =
                format!("{name} hands off to {:?}, and the agents are {}", to.name, known.join(", "));
            ConfigError::Team { reason }
        });
        self.problems.first().cloned().or_else(|| unknown.into_iter().next())
    }
}

impl From<&Team> for Arc<Agent> {
    fn from(team: &Team) -> Self {
        let mut agent = team.members.agent(&team.members.first).expect("the first one is a member");
        agent.problems.extend(team.problem());
        Self::new(agent)
    }
}

impl From<Team> for Arc<Agent> {
    fn from(team: Team) -> Self {
        Self::from(&team)
    }
}

impl Members {
    /// Returns the agent with this name, as a member. Without a cost limit of its own, it has that of the
    /// first agent.
    fn agent(self: &Arc<Self>, name: &str) -> Option<Agent> {
        let mut agent = self.agents.get(name)?.clone();
        agent.cost_limit = agent.cost_limit.or_else(|| self.agents.get(&self.first)?.cost_limit);
        agent.team = Some((name.to_owned(), Arc::clone(self)));
        Some(agent)
    }
}

impl Agent {
    /// Returns its name in its team.
    pub(crate) fn member_name(&self) -> Option<&str> {
        self.team.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the member of its team with this name.
    pub(crate) fn member(&self, name: &str) -> Option<Self> {
        self.team.as_ref()?.1.agent(name)
    }

    /// Returns the other members of its team.
    pub(crate) fn others(&self) -> impl Iterator<Item = Self> {
        let team = self.team.iter();
        team.flat_map(|(own, members)| {
            members.agents.keys().filter(move |name| *name != own).filter_map(|name| members.agent(name))
        })
    }

    /// Returns the hand-off that a recorded result of a tool requests.
    pub(crate) fn handed_to(&self, result: &ToolResult) -> Option<&HandOffTo> {
        self.hand_offs.iter().find(|to| result.status == ToolStatus::Ok && to.tool_name() == result.tool_name)
    }
}

/// Returns the agent that answers in a session whose conversation was last handed to `name`. If that agent no
/// longer exists, the given one answers, so the session remains usable.
pub(crate) fn answering(agent: Arc<Agent>, name: Option<&str>) -> Arc<Agent> {
    match name.filter(|name| agent.member_name() != Some(name)).and_then(|name| agent.member(name)) {
        Some(member) => Arc::new(member),
        None => agent,
    }
}

/// Returns the focus of a summary for the agent with this name.
pub(crate) fn focus(name: &str) -> String {
    format!(
        "the conversation goes on with another agent, {name}, who has seen nothing of it: keep what {name} needs"
    )
}

/// The tool with which a model hands over the conversation. The session does it when it records the tool's
/// result.
pub(crate) struct TransferTool(pub(crate) HandOffTo);

impl Tool for TransferTool {
    fn spec(&self) -> ToolSpec {
        let HandOffTo { name, description, .. } = &self.0;
        ToolSpec {
            name: self.0.tool_name(),
            description: format!(
                "Hands this conversation to the agent {name}, who answers from then on. {description}"
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "reason": { "type": "string", "description": "Why, and what the other agent needs to know." },
                },
                "additionalProperties": false,
            }),
        }
    }

    fn call(&self, _arguments: Value, _context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let text = format!("The conversation goes on with {}.", self.0.name);
        std::future::ready(ToolOutput::text(text)).boxed()
    }
}
