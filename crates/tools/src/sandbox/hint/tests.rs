//! Outputs of commands that were refused something, and what models are told.

use std::path::PathBuf;

use super::*;

#[test]
fn what_was_in_the_way_is_said() {
    let hosts = Network::Hosts(vec!["crates.io".parse().expect("a host")]);
    for (network, output, expect) in [
        (Network::None, "touch: cannot touch '/etc/x': Read-only file system", Some("sandbox.writable")),
        (
            Network::None,
            "error: could not lock config file .git/config: Device or resource busy",
            Some("git -c KEY=VALUE"),
        ),
        (Network::None, "/srv/.git: Read-only file system", Some("!git init")),
        (Network::None, "cat: /x: Permission denied", Some("sandbox.writable")),
        (Network::None, "mv: cannot move: Device or resource busy", Some("git's hooks")),
        (Network::None, "curl: (6) Could not resolve host: x", Some("without network")),
        (Network::None, "connect: Network is unreachable", Some("sandbox.network")),
        (hosts.clone(), "curl: (6) Could not resolve host: x", Some("reaches only crates.io")),
        (hosts, "greenroom: x:80 is not in sandbox.network", Some("add a host")),
        (Network::All, "curl: (6) Could not resolve host: x", None),
        (Network::None, "bash: fork: retry: Resource temporarily unavailable", Some("limit")),
        (Network::None, "unshare: Operation not permitted", Some("limits")),
        (Network::None, "assertion failed", None),
    ] {
        let sandbox = Sandbox { network, ..Sandbox::default() };
        for (way, is_sandbox) in
            [(Way::Bubblewrap(PathBuf::new()), true), (Way::Landlock, true), (Way::Off, false)]
        {
            let protection = Protection { way, has_mounts: true, is_namespace: true };
            // A command that succeeds may have failed at the network in the beginning of a pipe.
            for has_failed in [true, false] {
                let found = hint(&sandbox, &protection, has_failed, output);
                let is_network = ["network", "crates.io", "add a host"];
                let expect =
                    expect.filter(|text| has_failed || is_network.iter().any(|of| text.contains(of)));
                match expect.filter(|_| is_sandbox) {
                    Some(text) => {
                        assert!(
                            found.as_ref().is_some_and(|found| found.contains(text)),
                            "{output}: {found:?}"
                        )
                    }
                    None => assert_eq!(found, None, "{output}"),
                }
            }
        }
    }
}
