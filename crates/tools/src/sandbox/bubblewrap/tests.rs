//! The arguments of bubblewrap for some mounts.

use super::*;

fn line(mounts: &[Mount], network: &Network) -> String {
    let line = arguments(mounts, network, Path::new("/w"));
    line.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[test]
fn mounts_become_arguments() {
    let at = |path: &str| std::path::PathBuf::from(path);
    for (mount, expect) in [
        (Mount::Writable(at("/w")), "--bind /w /w"),
        (Mount::ReadOnly(at("/w/.git/hooks")), "--ro-bind /w/.git/hooks /w/.git/hooks"),
        (Mount::Replaced { folder: at("/p"), at: at("/tmp") }, "--bind /p /tmp"),
        (Mount::Blank(at("/w/greenroom.yaml")), "--ro-bind /dev/null /w/greenroom.yaml"),
        (Mount::Empty(at("/run")), "--tmpfs /run --remount-ro /run"),
        (Mount::Root, ""),
        (Mount::Devices, ""),
    ] {
        let found = line(std::slice::from_ref(&mount), &Network::None);
        let space = if expect.is_empty() { "" } else { " " };
        assert!(found.ends_with(&format!("/proc/fs{space}{expect} --chdir /w --")), "{mount:?}: {found}");
    }
    // A folder is closed only after everything in it was mounted.
    let both = [Mount::Empty(at("/h")), Mount::Writable(at("/h/w"))];
    let found = line(&both, &Network::None);
    assert!(found.contains("--tmpfs /h --bind /h/w /h/w --remount-ro /h --chdir"), "{found}");
}

#[test]
fn what_every_sandbox_has() {
    let hosts = Network::Hosts(Vec::new());
    for (network, has_none) in [(Network::None, true), (hosts, true), (Network::All, false)] {
        let found = line(&[], &network);
        assert_eq!(found.contains("--unshare-net"), has_none, "{found}");
        for part in [
            "--unshare-pid", "--unshare-ipc", "--new-session", "--die-with-parent", "--ro-bind / /",
            "--dev /dev",
        ] {
            assert!(found.contains(part), "{part}: {found}");
        }
    }
}
