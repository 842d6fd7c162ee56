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
    "echo `echo \\`rm x\\``",
    "ls `true \\`rm x\\``",
    "echo \"`echo \\`rm x\\``\"",
    "echo \"`echo \\\"\\`rm x\\`\\\"`\"",
    "echo `echo \\$(rm x)`",
    "echo `echo '\\\\'; rm x; echo '\\\\'`",
    "echo $(echo `echo \\`rm x\\``)",
    "cat < <(echo `echo \\`rm x\\``)",
    "echo `# \\\nrm x`",
    "echo \"$(r\\\nm x)\"",
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
    // A second list, after the first was mended.
    ">out rm x",
    "2>/dev/null rm x",
    "<in rm x",
    "exec >out; rm x",
    "exec 3>&1 rm x",
    "A=1 B=2 rm x",
    "A+=1 rm x",
    "a[0]=1 rm x",
    "time -p rm x",
    "/usr/bin/time -o f rm x",
    "! ! rm x",
    "{ { rm x; }; }",
    "( ( rm x ) )",
    "((1)); rm x",
    "[[ a ]] && rm x",
    "if :; then :; elif rm x; then :; fi",
    "if [ 1 ]\nthen\nrm x\nfi",
    "for ((i=0;i<1;i++)); do rm x; done",
    "for ((i=$(rm x);i<1;i++)); do :; done",
    "case $(rm x) in *) ;; esac",
    "case x in $(rm x)) ;; esac",
    "echo a | while read f; do rm $f; done",
    "echo ${A:=$(rm x)}",
    "echo ${A/$(rm x)/b}",
    "echo \"${A:-$(rm x)}\"",
    "A='$(rm x)'; echo ${A@P}",
    "PS4='$(rm x)'; set -x; ls",
    "PS4='$(rm x)' bash -xc ls",
    "BASH_ENV=script bash -c ls",
    "mapfile -C 'rm x' -c 1 < f",
    "readarray -C rm -c1 a < f",
    "compgen -C 'rm x'",
    "compgen -W '$(rm x)'",
    "complete -C 'rm x' ls",
    "bind -x '\"a\": rm x'",
    "enable -f ./x.so x",
    "hash -p /bin/rm ls; ls x",
    "printf -v 'a[$(rm x)]' 1",
    "printf -v'a[$(rm x)]' 1",
    "test -v 'a[$(rm x)]'",
    "[ -v 'a[$(rm x)]' ]",
    "[[ -v a[$(rm x)] ]]",
    "[[ 'a[$(rm x)]' -eq 1 ]]",
    "read A < f; [[ $A -eq 1 ]]",
    "read 'a[$(rm x)]' <<< 1",
    "read -r \"a[\\$(rm x)]\" <<< 1",
    "unset 'a[$(rm x)]'",
    "declare 'a[$(rm x)]=1'",
    "declare -i 'A=a[$(rm x)]'",
    "typeset -i A='b[`rm x`]'",
    "export 'a[$(rm x)]=1'",
    "readonly 'a[`rm x`]=1'",
    "let 'a[$(rm x)]=1'",
    "A='a[$(rm x)]'; let B=A",
    "getopts x 'a[$(rm x)]'",
    "wait -p 'a[$(rm x)]' -n",
    "echo $[ $(rm x) ]",
    "echo $[a[$(rm x)]]",
    "echo $((a['$(rm x)']))",
    "A='a[$(rm x)]'; echo $((A))",
    "let a=$(rm x)",
    "declare A=$(rm x)",
    "readonly A=`rm x`",
    "[ $(rm x) ]",
    "test `rm x`",
    "find . -ok rm {} \\;",
    "find . -okdir rm {} \\;",
    "xargs -a list rm",
    "xargs -0 -n1 -P4 rm",
    "xargs sh -c 'rm x'",
    "env -u A rm x",
    "env -C / rm x",
    "env --chdir=/ rm x",
    "env -- rm x",
    "env - rm x",
    "env -S'rm x'",
    "env --split-string='rm x'",
    "env --split-string 'A=1 rm x'",
    "sudo -E -- rm x",
    "sudo A=1 rm x",
    "nice -19 rm x",
    "timeout -k 1 --signal=KILL 5 rm x",
    "command -p -- rm x",
    "exec -c -a n rm x",
    "runuser -u x -- rm x",
    "pkexec rm x",
    "fakeroot rm x",
    "firejail rm x",
    "bwrap --bind / / rm x",
    "unbuffer rm x",
    "chronic rm x",
    "prlimit --nofile=1 rm x",
    "numactl -N0 rm x",
    "setarch -R rm x",
    "valgrind rm x",
    "perf stat rm x",
    "dbus-run-session -- rm x",
    "tmux new-session -d 'rm x'",
    "screen -dm rm x",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "eval \"$(echo rm x)\"",
    "eval $'rm x'",
    "eval -- rm x",
    "builtin eval rm x",
    "command eval 'rm x'",
    "builtin . ./x",
    "source /dev/stdin <<< 'rm x'",
    ". <(echo rm x)",
    "bash -s <<< 'rm x'",
    "bash -x -c 'rm x'",
    "bash -O extglob -c 'rm x'",
    "bash --norc -c 'rm x'",
    "bash -c -- 'rm x'",
    "bash +x -c 'rm x'",
    "bash --rcfile f -ic ls",
    "bash --init-file <(echo rm x) -i",
    "rbash -c 'rm x'",
    "dash -c 'rm x'",
    "busybox sh -c 'rm x'",
    "toybox rm x",
    "$SHELL -c 'rm x'",
    "sh -c \"$X\"",
    "sh -c $'rm x'",
    "env sh -c 'rm x'",
    "exec sh -c 'eval rm x'",
    "{,rm} x",
    "r{m,} x",
    "r{m..m} x",
    "~/rm x",
    "~+/rm x",
    "/bin/@(rm) x",
    "+(r)m x",
    "${A+rm} x",
    "\"$A\" x",
    "$1 x",
    "\"$@\"",
    "r$@m x",
    "r$*m x",
    "r${x}m x",
    "${IFS}rm x",
    "rm${IFS}x",
    "rm$IFS'x'",
    "a=(rm x); \"${a[@]}\"",
    "$'\\162\\155' x",
    "$'r\\u006d' x",
    "echo a > >(rm x)",
    "exec > >(rm x)",
    "ls 2> >(rm x)",
    "ls |\nrm x",
    "ls &&\n\nrm x",
    "ls ||\\\nrm x",
    "ls &>/dev/null& rm x",
    "ls <<A <<B\nA\n$(rm x)\nB",
    "ls <<-A\n\t$(rm x)\n\tA",
    "ls <<A\nA\nrm x",
    "ls <<'A B'\nA B\nrm x",
    "ls <<\\A\nA\nrm x",
    "echo \"a\nb\"; rm x",
    "echo a\\\\; rm x",
    "echo 'a'\\'; rm x",
    "coproc N { rm x; }",
    "trap -- 'rm x' 0",
    "trap 'rm x' DEBUG; ls",
    "printf 'rm x' | bash",
    "echo cm0geA== | base64 -d | sh",
    "bash <<EOF\nrm x\nEOF",
    "bash <<'EOF'\nrm x\nEOF",
    "sh<<<rm\\ x",
    "function rm2 () { rm x; }; rm2",
    "select f in a; do rm x; done < in",
    "command . ./x",
    "env -vS'rm x'",
    "env -iS 'rm x'",
    "env -Srm x",
    "ssh -oProxyCommand='rm x' host",
    "ssh -o ProxyCommand='rm x' host",
    "nice -n5 -- rm x",
    "xargs -I{} sh -c 'rm {}'",
    "bash -c '$0 x' rm",
    "bash -c 'exec \"$@\"' _ rm x",
    "find . -exec bash -c '\"$0\" x' rm \\;",
    "trap rm\\ x EXIT",
    "sh -c rm\\ x",
    "sh -c 'r''m x'",
    "parallel -j2 'rm {}' ::: x",
    "watch -n1 rm x",
    "flock -c 'rm x' lock",
    "script -qc 'rm x' /dev/null",
    "su - -c 'rm x'",
    "sudo -s <<< 'rm x'",
    "sudo -i",
    "su",
    "nsenter -t1 -- sh -c 'rm x'",
    "then rm x",
    "do rm x",
    "! rm x",
    "time ! rm x",
    "{ rm x;} 2>/dev/null",
    "(rm x) 2>/dev/null",
    "if rm x; then :; fi >out",
    "while :; do rm x; break; done < f",
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
    let (mut denied, mut running) = (0, Vec::new());
    for command in BYPASSES {
        let arguments = json!({ "command": command });
        let call = Call::new("bash", &arguments);
        let verdict = denying.judge(&call);
        denied += usize::from(matches!(verdict, Verdict::Deny(_)));
        if [verdict, asking.judge(&call)].contains(&Verdict::Allow) {
            running.push(command);
        }
    }
    assert!(running.is_empty(), "these run where `rm` is forbidden, or asks: {running:#?}");
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

/// What bash evaluates in the arguments of its own commands is no argument.
#[test]
fn arguments_that_are_evaluated_are_not_allowed_with_their_command() {
    let rules = [
        "printf *",
        "test *",
        "[ *",
        "[[ *",
        "read *",
        "export *",
        "declare *",
        "unset *",
        "let *",
        "compgen *",
    ];
    let rules = rules.map(|words| format!("bash({words})"));
    let rules: Vec<(Effect, &str)> = rules.iter().map(|rule| (Effect::Allow, &**rule)).collect();
    let policy = policy(Mode::Ask, &rules);
    let judge = |command: &str| policy.judge(&Call::new("bash", &json!({ "command": command })));
    for command in [
        "printf -v 'a[$(rm x)]' 1",
        "test -v 'a[`rm x`]'",
        "[ -v 'a[$(rm x)]' ]",
        "[[ 'a[$(rm x)]' -eq 1 ]]",
        "[[ $A -gt 1 ]]",
        "read 'a[$(rm x)]'",
        "export 'a[$(rm x)]=1'",
        "declare -i A='b[$(rm x)]'",
        "unset $A",
        "let A",
        "compgen -W '$(rm x)'",
        "LD_PRELOAD=./x.so printf a",
        "PATH=. printf a",
    ] {
        assert!(matches!(judge(command), Verdict::Ask(_)), "{command:?}: {:?}", judge(command));
    }
    for command in [
        "printf '%s [$(x)]' a",
        "test -n \"$A\"",
        "[ 1 -lt 2 ]",
        "[[ -f $A ]]",
        "[[ a == b ]]",
        "read A",
        "export A=1",
        "export A=\"$B\"",
        "declare A=1",
        "unset A",
    ] {
        assert_eq!(judge(command), Verdict::Allow, "{command:?}");
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
