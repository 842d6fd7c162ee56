//! The agents of `serve`: their sandboxes, as a table, and their warnings.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use super::*;
use crate::config::sandbox::ModeConfig;

#[test]
fn an_agent_names_its_sandbox_and_loosens_none_of_the_command() {
    use ModeConfig::{Auto, Bubblewrap, Landlock, Off};
    // The agent's, the command's, and what holds.
    for (own, flag, expect) in [
        (None, None, None),
        (None, Some(Landlock), Some(Landlock)),
        (Some(Off), None, Some(Off)),
        (Some(Bubblewrap), None, Some(Bubblewrap)),
        (Some(Bubblewrap), Some(Auto), Some(Bubblewrap)),
        (Some(Auto), Some(Off), Some(Auto)),
        (Some(Off), Some(Auto), Some(Auto)),
        (Some(Auto), Some(Bubblewrap), Some(Bubblewrap)),
        (Some(Landlock), Some(Bubblewrap), Some(Bubblewrap)),
        (Some(Landlock), Some(Auto), Some(Landlock)),
    ] {
        let config = AgentConfig { sandbox: own, ..AgentConfig::default() };
        let command = ModelArgs { sandbox: flag, ..ModelArgs::bare() };
        let found = flags_of(&config, &command, &Surroundings::here()).sandbox;
        assert_eq!(found, expect, "{own:?} with {flag:?}");
    }
}

#[tokio::test]
async fn warnings_go_on_after_too_many_at_once() {
    let (sender, mut news) = broadcast::channel(2);
    for number in 0..5 {
        sender.send(number.to_string()).unwrap();
    }
    drop(sender);
    let mut told = Vec::new();
    while let Some(warning) = next(&mut news).await {
        told.push(warning);
    }
    assert_eq!(told, ["3", "4"]);
}
