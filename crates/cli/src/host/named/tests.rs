//! The sandbox of an agent of `serve`, as a table.

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
