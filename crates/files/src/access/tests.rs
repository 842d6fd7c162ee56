//! Which owners and permissions are refused.

use super::*;

const USER: u32 = 1_000;

/// What is refused of a file with this mode, for each need: `o` for the owner, `p` for the permissions, `-` for nothing.
#[track_caller]
fn check(owner: u32, mode: u32, expect: &str) {
    let letter = |need| match judge(owner, 0o100_000 | mode, USER, need) {
        Ok(()) => '-',
        Err(Exposed::Owner { owner: named, user }) => {
            assert_eq!((named, user), (owner, USER));
            'o'
        }
        Err(Exposed::Permissions) => 'p',
    };
    let seen: String = [Need::Private, Need::Own, Need::Trusted, Need::Closed, Need::Guarded]
        .into_iter()
        .map(letter)
        .collect();
    assert_eq!(seen, expect, "owner {owner}, mode {mode:o}");
}

#[test]
fn each_need_refuses_what_would_give_others_access() {
    check(USER, 0o600, "-----");
    check(USER, 0o700, "-----");
    check(USER, 0o400, "-----");
    // Others can read it.
    for mode in [0o640, 0o604, 0o644, 0o610, 0o601] {
        check(USER, mode, "p----");
    }
    // The group can change it.
    for mode in [0o660, 0o620, 0o664] {
        check(USER, mode, "pp-p-");
    }
    // Everybody can change it.
    for mode in [0o602, 0o606, 0o666] {
        check(USER, mode, "ppppp");
    }
    check(0, 0o600, "oo---");
    check(0, 0o664, "oo-p-");
    check(0, 0o666, "ooppp");
    check(1_001, 0o600, "ooo--");
    check(1_001, 0o666, "ooopp");
}
