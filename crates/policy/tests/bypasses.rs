//! Ways around the rules: commands that run `rm`, or reach a file, in a form that a comparison of texts misses.
//!
//! Invariants: none of them runs. Where `rm` is forbidden, in a session that allows everything else, each is
//! denied or asks; where only harmless commands are allowed, each asks or is denied.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use greenroom_policy::{Call, Effect, Mode, Policy, Verdict};
use serde_json::json;

/// Forms of a command that runs `rm`.
const BYPASSES: &[&str] = &[
    "rm x",
    " rm x",
    "\trm x",
    "\nrm x",
    "rm\tx",
    "rm \\\nx",
    "r\\\nm x",
    "\\rm x",
    "r\\m x",
    "'rm' x",
    "\"rm\" x",
    "r''m x",
    "r\"\"m x",
    "'r'\"m\" x",
    "$'rm' x",
    "$'\\x72m' x",
    "$\"rm\" x",
    "/bin/rm x",
    "/usr/bin/../bin/rm x",
    "../../bin/rm x",
    "//bin/rm x",
    "ls; rm x",
    "ls;rm x",
    "ls && rm x",
    "ls || rm x",
    "ls | rm x",
    "ls |& rm x",
    "ls & rm x",
    "ls\nrm x",
    "(rm x)",
    "{ rm x; }",
    "! rm x",
    "if true; then rm x; fi",
    "if rm x; then true; fi",
    "while rm x; do true; done",
    "until rm x; do true; done",
    "for f in a; do rm $f; done",
    "for f in $(rm x); do true; done",
    "case a in a) rm x;; esac",
    "select f in a; do rm x; done",
    "echo $(rm x)",
    "echo `rm x`",
    "echo \"$(rm x)\"",
    "echo \"`rm x`\"",
    "echo ${A:-$(rm x)}",
    "echo ${A:-`rm x`}",
    "echo $((1 + $(rm x)))",
    "echo $(( a[$(rm x)] ))",
    "[[ -n $(rm x) ]]",
    "[ -n \"$(rm x)\" ]",
    "cat <(rm x)",
    "tee >(rm x)",
    "cat < <(rm x)",
    "cat <<< $(rm x)",
    "cat <<EOF\n$(rm x)\nEOF",
    "cat <<EOF\n`rm x`\nEOF",
    "X=$(rm x)",
    "X=$(rm x) ls",
    "export X=$(rm x)",
    "a[$(rm x)]=1",
    "A=rm; $A x",
    "$A x",
    "${A} x",
    "${A:-rm} x",
    "$(echo rm) x",
    "`echo rm` x",
    "{rm,x}",
    "{r,}m x",
    "r? x",
    "/bin/r[m] x",
    "/bin/r* x",
    "eval rm x",
    "eval 'rm x'",
    "eval \"r\"m x",
    "exec rm x",
    "command rm x",
    "builtin command rm x",
    "env rm x",
    "env A=1 rm x",
    "env -i /bin/rm x",
    "env -S 'rm x'",
    "sudo rm x",
    "sudo -u root rm x",
    "doas rm x",
    "nohup rm x",
    "nice -n 5 rm x",
    "time rm x",
    "timeout 5 rm x",
    "timeout 5 sh -c 'rm x'",
    "setsid rm x",
    "stdbuf -o0 rm x",
    "xargs rm < list",
    "echo x | xargs rm",
    "echo x | xargs -I{} rm {}",
    "find . -exec rm {} \\;",
    "find . -execdir rm {} +",
    "sh -c 'rm x'",
    "bash -c \"rm x\"",
    "bash -lc 'ls; rm x'",
    "bash -c 'bash -c \"rm x\"'",
    "sh -ec 'rm x'",
    "sh script",
    "bash <<< 'rm x'",
    "echo 'rm x' | sh",
    "sh < script",
    "bash <(echo rm x)",
    ". ./script",
    "source script",
    "trap 'rm x' EXIT",
    "busybox rm x",
    "coproc rm x",
    "f() { rm x; }; f",
    "function f { rm x; }; f",
    "alias ls='rm x'",
    "ls() { rm x; }",
    "ls # comment\nrm x",
    "ls a#<(rm x)",
    "echo -x<(rm x)",
    "[[ -n a ]]#<(rm x)",
    "ls >&'$(rm x)'",
    "# comment\nrm x",
    "ls \\\n; rm x",
    "ls\r\nrm x",
    "ls\u{a0}; rm x",
    "ls 2>&1; rm x",
    "ls >/dev/null; rm x",
    "cd /; rm x",
    "true; exec -a y rm x",
    "watch 'rm x'",
    "parallel rm ::: x",
    "flock lock rm x",
    "strace rm x",
    "ssh host rm x",
    "su -c 'rm x'",
    "script -c 'rm x'",
    "unshare rm x",
    "nsenter -t 1 rm x",
    "chroot / rm x",
    "systemd-run rm x",
];

fn policy(mode: Mode, rules: &[(Effect, &str)]) -> Policy {
    let mut policy = Policy::new(mode, "/srv");
    for (effect, rule) in rules {
        policy.add(*effect, rule, "the test").unwrap();
    }
    policy
}

#[test]
fn a_forbidden_command_runs_in_no_form() {
    let denying = policy(Mode::Everything, &[(Effect::Deny, "bash(rm *)")]);
    let asking = policy(Mode::Everything, &[(Effect::Ask, "bash(rm *)")]);
    let mut denied = 0;
    for command in BYPASSES {
        let arguments = json!({ "command": command });
        let call = Call::new("bash", &arguments);
        let verdict = denying.judge(&call);
        assert!(verdict != Verdict::Allow, "{command:?} runs where `rm` is forbidden");
        denied += usize::from(matches!(verdict, Verdict::Deny(_)));
        assert!(asking.judge(&call) != Verdict::Allow, "{command:?} runs where `rm` asks");
    }
    assert!(BYPASSES.len() >= 80 && denied >= 60, "{denied} of {} are recognised", BYPASSES.len());
}

#[test]
fn what_is_allowed_does_not_carry_other_commands() {
    let rules = ["ls *", "echo *", "cat *", "true", "tee *"].map(|words| format!("bash({words})"));
    let rules: Vec<(Effect, &str)> = rules.iter().map(|rule| (Effect::Allow, &**rule)).collect();
    for mode in [Mode::Ask, Mode::AcceptEdits] {
        let policy = policy(mode, &rules);
        for command in BYPASSES {
            let arguments = json!({ "command": command });
            let verdict = policy.judge(&Call::new("bash", &arguments));
            assert!(verdict != Verdict::Allow, "{command:?} runs although only harmless commands may");
        }
    }
}

/// What harmless commands with forbidden words in their arguments may still do.
#[test]
fn words_in_arguments_are_not_commands() {
    let policy = policy(Mode::Everything, &[(Effect::Deny, "bash(rm *)")]);
    let fine = [
        "echo rm x",
        "git commit -m 'rm x'",
        "grep rm file",
        "cat rm",
        "rmdir x",
        "./rm.sh",
        "git rm x",
        "ls # rm x",
        "echo 'a; rm x'",
        "echo \"a && rm x\"",
        "echo \\$\\(rm x\\)",
        "docker rm x",
    ];
    for command in fine {
        let arguments = json!({ "command": command });
        assert_eq!(policy.judge(&Call::new("bash", &arguments)), Verdict::Allow, "{command:?}");
    }
}

/// Ways to a file that may not be read or written.
#[test]
fn a_forbidden_file_is_reached_in_no_form() {
    let policy = policy(
        Mode::Everything,
        &[(Effect::Deny, "write(.env)"), (Effect::Deny, "read(.env)"), (Effect::Deny, "write(/etc/**)")],
    );
    let rows = [
        "echo > .env",
        "echo >> .env",
        "echo >| .env",
        "echo &> .env",
        "echo &>> .env",
        "echo 2> .env",
        "echo >& .env",
        "echo > './.env'",
        "echo > a/../.env",
        "echo > /srv/.env",
        "echo > .e\"nv\"",
        "> .env",
        "{ echo; } > .env",
        "(echo) > .env",
        "if true; then echo; fi > .env",
        "echo $(echo > .env)",
        "cat < .env",
        "cat < ./.env",
        "echo > $F",
        "echo > $(echo .env)",
        "echo > .en?",
        "echo > {.env,b}",
        "cd src && echo > ../.env",
        "exec 3> .env",
        "echo <> .env",
        "echo > /etc/passwd",
        "echo > ../etc/passwd",
    ];
    for command in rows {
        let arguments = json!({ "command": command });
        let verdict = policy.judge(&Call::new("bash", &arguments));
        assert!(verdict != Verdict::Allow, "{command:?} runs");
    }
    for path in [".env", "./.env", "a/../.env", "/srv/.env", " .env ", "a//.env", "/srv/../srv/.env"] {
        let arguments = json!({ "path": path });
        for tool in ["read", "write", "edit", "list", "grep"] {
            let verdict = policy.judge(&Call::new(tool, &arguments));
            assert!(matches!(verdict, Verdict::Deny(_)), "{tool} {path:?}: {verdict:?}");
        }
    }
}
