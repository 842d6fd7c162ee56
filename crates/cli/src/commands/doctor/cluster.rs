//! The problems of a cluster: its database, and its nodes as this machine reaches them.
//!
//! Invariants: the cluster is not joined, and nothing in its database is changed.

use std::collections::BTreeMap;
use std::time::Duration;

use greenroom::StoreError;
use greenroom::internal::{Survey, SurveyedNode};
use greenroom_server::{NodeAnswer, ask_node};
use greenroom_terminal::format;

use super::Check;
use crate::args::DoctorArgs;
use crate::config::overrides::STORE;
use crate::config::surroundings::Surroundings;
use crate::{error, host};

/// The connections of a node with the default settings.
const CONNECTIONS: u64 = 8;

/// Checks the cluster whose database is given or in the environment.
pub(super) async fn checks(args: &DoctorArgs, here: &Surroundings) -> Vec<Check> {
    let (database, secret) = match host::cluster::for_doctor(args, here) {
        Ok(None) if args.cluster => {
            let remedy = format!("give its URL with --store, or set {STORE}");
            return vec![Check::bad("cluster", "no database is named", remedy)];
        }
        Ok(None) => return Vec::new(),
        Ok(Some(known)) => known,
        Err(error) => return vec![Check::bad("cluster", error::line(&error), "see docs/scale_out.md")],
    };
    let begun = std::time::Instant::now();
    let survey = match database.survey().await {
        Ok(survey) => survey,
        Err(error) => {
            let remedy = if let StoreError::Unavailable { .. } = error {
                "check the URL, and that this machine can reach the database"
            } else {
                "do what the text above says"
            };
            return vec![Check::bad("database", error::line(&error.into()), remedy)];
        }
    };
    let mut checks = vec![of_database(&survey, begun.elapsed())];
    if survey.tables == 0 {
        return checks;
    }
    for node in &survey.nodes {
        let answer = match &node.address {
            Some(address) if node.lease_seconds > 0.0 => {
                Some(ask_node(&node.name, address, secret.as_deref()).await)
            }
            Some(_) | None => None,
        };
        checks.push(of_node(node, answer));
    }
    checks.extend(of_cluster(&survey, secret.is_some()));
    checks
}

fn of_database(survey: &Survey, took: Duration) -> Check {
    let Survey { server, tables, sessions, connections_left, .. } = survey;
    let server = format!("PostgreSQL {server}, checked in {} ms", took.as_millis());
    if *tables == 0 {
        return Check::ok("database", format!("{server}; no tables yet: the first node creates them"));
    }
    let found = format!("{server}; tables of version {tables}, {}", format::count(*sessions, "session"));
    if *connections_left < CONNECTIONS {
        let found = format!("{found}; {} left", format::count(*connections_left, "connection"));
        let remedy = format!("a node needs {CONNECTIONS}: raise `max_connections` of the server");
        return Check::bad("database", found, remedy);
    }
    Check::ok("database", found)
}

fn of_node(node: &SurveyedNode, answer: Option<NodeAnswer>) -> Check {
    let SurveyedNode { name, address, is_draining, lease_seconds, sessions } = node;
    let address = address.as_deref().unwrap_or("without an address");
    let found = format!("{name}, {address}, {}", format::count(*sessions, "session"));
    if *lease_seconds <= 0.0 {
        let ago = format!("{:.0} s", -lease_seconds);
        let found = format!("{found}; its lease expired {ago} ago");
        let remedy = "other nodes take over its unfinished sessions; start it again, unless it was removed: then it is \
                      forgotten within a day, when another node starts";
        return Check::bad("node", found, remedy);
    }
    let found = if *is_draining { format!("{found}; leaving") } else { found };
    match answer {
        None | Some(NodeAnswer::Ready) => Check::ok("node", found),
        // It takes no more work, as it should.
        Some(NodeAnswer::NotReady(_)) if *is_draining => Check::ok("node", found),
        Some(NodeAnswer::NotReady(reason)) => {
            Check::bad("node", format!("{found}; not ready: {reason}"), "its log says why")
        }
        Some(NodeAnswer::OtherSecret) => Check::bad(
            "node",
            format!("{found}; its secret differs from the secret on this machine"),
            "give all nodes the same GREENROOM_CLUSTER_SECRET, and start them again one by one",
        ),
        Some(NodeAnswer::OtherNode(other)) => Check::bad(
            "node",
            format!("{found}; node {other} answers at this address"),
            "give each node its own address with --advertise",
        ),
        Some(NodeAnswer::None(reason)) => Check::bad(
            "node",
            format!("{found}; not reached from here: {reason}"),
            "all nodes must reach it at this address; check its --advertise and any firewall",
        ),
    }
}

/// What no single node shows.
fn of_cluster(survey: &Survey, knows_secret: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    let alive: Vec<&SurveyedNode> = survey.nodes.iter().filter(|node| node.lease_seconds > 0.0).collect();
    let mut by_address = BTreeMap::<&str, Vec<&str>>::new();
    for node in &alive {
        if let Some(address) = &node.address {
            by_address.entry(address).or_default().push(&node.name);
        }
    }
    for (address, names) in by_address.into_iter().filter(|(_, names)| names.len() > 1) {
        let found = format!("{} have the same address, {address}", names.join(" and "));
        checks.push(Check::bad("cluster", found, "give each node its own with --advertise"));
    }
    if survey.abandoned > 0 {
        let found = format!(
            "{} with unfinished runs, and no node runs them",
            format::count(survey.abandoned, "session")
        );
        let remedy = match alive.iter().any(|node| !node.is_draining) {
            true => "the nodes take them over within seconds; if this persists, see the nodes' logs",
            false => "start a node: `greenroom serve --store …`",
        };
        checks.push(Check::bad("cluster", found, remedy));
    } else if alive.is_empty() {
        checks.push(Check::ok("cluster", "no node is running"));
    } else if alive.iter().all(|node| node.is_draining) {
        checks.push(Check::bad(
            "cluster",
            "all nodes are leaving, so no session can be started",
            "start another node",
        ));
    }
    if !knows_secret && !alive.is_empty() {
        checks.push(Check::ok(
            "cluster",
            "secrets and names not compared; set GREENROOM_CLUSTER_SECRET for that",
        ));
    }
    checks
}

#[cfg(test)]
mod tests;
