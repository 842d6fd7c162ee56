//! Which protection is chosen, as a table.

use super::*;

#[test]
fn the_best_protection_is_chosen() {
    use Containment::{PidNamespace, ProcessTree};
    use SandboxMode::{Auto, Bubblewrap, Landlock, Off};
    let hosts = || Network::Hosts(vec!["crates.io".parse().expect("a host")]);
    let none = || Network::None;
    // Mode, network, whether bubblewrap works, the version of Landlock, containment, helper; the mode in effect with the
    // number of gaps, or a part of the refusal.
    for (mode, network, has_bubblewrap, abi, containment, has_helper, expect) in [
        (Auto, none(), true, Some(6), PidNamespace, true, Ok((Bubblewrap, 0))),
        (Auto, none(), true, None, ProcessTree, false, Ok((Bubblewrap, 0))),
        (Auto, none(), false, Some(6), PidNamespace, true, Ok((Landlock, 0))),
        (Auto, none(), false, Some(6), ProcessTree, true, Ok((Landlock, 1))),
        (Auto, none(), false, Some(1), PidNamespace, true, Ok((Landlock, 0))),
        (Auto, none(), false, Some(5), ProcessTree, true, Err("ending other processes")),
        (Auto, none(), false, Some(6), PidNamespace, false, Err("needs a helper")),
        (Auto, none(), false, None, PidNamespace, true, Err("no Landlock")),
        (Bubblewrap, none(), false, Some(6), PidNamespace, true, Err("is not installed")),
        (Landlock, none(), true, Some(6), PidNamespace, true, Ok((Landlock, 0))),
        (Landlock, none(), true, None, PidNamespace, true, Err("no Landlock")),
        (Off, Network::All, false, None, PidNamespace, true, Ok((Off, 0))),
        (Off, Network::All, false, None, ProcessTree, true, Ok((Off, 1))),
        (Auto, hosts(), true, None, ProcessTree, true, Ok((Bubblewrap, 0))),
        (Auto, hosts(), true, None, ProcessTree, false, Err("needs a helper")),
        (Auto, hosts(), false, Some(6), PidNamespace, true, Err("needs bubblewrap")),
    ] {
        let bubblewrap = match has_bubblewrap {
            true => Ok("/usr/bin/bwrap".into()),
            false => Err("bubblewrap is not installed".to_owned()),
        };
        let sandbox = Sandbox { mode, network, ..Sandbox::default() };
        let found = sandbox.choose(&Found { bubblewrap, landlock: abi }, containment, has_helper);
        match (&found, expect) {
            (Ok(found), Ok((mode, gaps))) => {
                assert_eq!((found.mode(), found.gaps().len()), (mode, gaps), "{sandbox:?}");
            }
            (Err(found), Err(part)) => assert!(found.contains(part), "{found}"),
            _ => panic!("{sandbox:?}: {found:?}"),
        }
    }
}

/// People and models are told the same before a command runs.
#[test]
fn what_commands_may_is_said_in_a_sentence() {
    let hosts =
        Network::Hosts(vec!["crates.io".parse().expect("a host"), "*.x.org".parse().expect("a host")]);
    for (mode, network, writable, expect) in [
        (SandboxMode::Off, Network::All, vec![], None),
        (SandboxMode::Auto, Network::None, vec![], Some("only the workspace and /tmp, and have no network.")),
        (
            SandboxMode::Landlock,
            Network::All,
            vec!["/srv"],
            Some("the workspace, /tmp, /srv, and can use the network."),
        ),
        (
            SandboxMode::Bubblewrap,
            hosts,
            vec![],
            Some("and reach only crates.io, *.x.org, over HTTP and HTTPS."),
        ),
    ] {
        let writable = writable.into_iter().map(Into::into).collect();
        let summary = Sandbox { mode, network, writable, ..Sandbox::default() }.summary();
        assert_eq!(summary.is_some(), expect.is_some(), "{summary:?}");
        assert!(summary.is_none_or(|summary| summary.ends_with(expect.unwrap_or_default())), "{expect:?}");
    }
}
