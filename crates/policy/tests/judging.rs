//! Calls, and what becomes of them by rules and modes.

use std::path::Path;

use greenroom_policy::{Call, Effect, Mode, Policy, Subject, Verdict};
use serde_json::{Value, json};

/// Creates a policy in `/srv` from rules such as `deny bash(rm *)`.
fn policy(mode: Mode, rules: &[&str]) -> Policy {
    let mut policy =
        Policy::new(mode, "/srv").home(Some("/home/ada".into())).trust(["ask_user"]).protect(&[".git"]);
    for rule in rules {
        let (effect, text) = rule.split_once(' ').expect("an effect and a rule");
        let effect =
            [Effect::Deny, Effect::Ask, Effect::Allow].into_iter().find(|known| known.as_str() == effect);
        policy.add(effect.expect("an effect"), text, "the test").expect("a valid rule");
    }
    policy
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Ask(_) => "ask",
        Verdict::Deny(_) => "deny",
    }
}

fn arguments(tool: &str, argument: &str) -> Value {
    match tool {
        "bash" => json!({ "command": argument }),
        "refund" | "ask_user" | "look" => json!({}),
        _ => json!({ "path": argument }),
    }
}

/// Checks the verdict on one call.
fn check(mode: Mode, rules: &[&str], tool: &str, argument: &str, expected: &str) {
    let arguments = arguments(tool, argument);
    let verdict = policy(mode, rules).judge(&Call::new(tool, &arguments).read_only(tool == "look"));
    assert_eq!(word(&verdict), expected, "{mode} {rules:?}: {tool} {argument}: {verdict:?}");
}

#[test]
fn modes_decide_what_no_rule_does() {
    // The verdicts in the modes read_only, ask, accept_edits, everything.
    let rows: [(&str, &str, [&str; 4]); 19] = [
        ("read", "src/lib.rs", ["allow", "allow", "allow", "allow"]),
        ("list", ".", ["allow", "allow", "allow", "allow"]),
        ("grep", "", ["allow", "allow", "allow", "allow"]),
        // What the tools refuse themselves is not asked about.
        ("read", "/etc/passwd", ["allow", "allow", "allow", "allow"]),
        ("read", "../other/a", ["allow", "allow", "allow", "allow"]),
        ("write", "src/lib.rs", ["deny", "ask", "allow", "allow"]),
        ("edit", "/srv/a", ["deny", "ask", "allow", "allow"]),
        ("edit", "/srvshop/a", ["deny", "allow", "allow", "allow"]),
        ("bash", "echo > /srvshop/a", ["deny", "ask", "ask", "allow"]),
        ("bash", "cat < /etc/passwd", ["deny", "ask", "ask", "allow"]),
        ("edit", "a/../../b", ["deny", "allow", "allow", "allow"]),
        ("bash", "cargo test", ["deny", "ask", "ask", "allow"]),
        ("bash", "pwd; ls -la src; echo done", ["deny", "allow", "allow", "allow"]),
        ("bash", "ls /etc", ["deny", "ask", "ask", "allow"]),
        ("bash", "echo x > src/a", ["deny", "ask", "allow", "allow"]),
        ("bash", "echo $(", ["deny", "ask", "ask", "allow"]),
        ("refund", "", ["deny", "ask", "ask", "allow"]),
        ("look", "", ["allow", "allow", "allow", "allow"]),
        ("ask_user", "", ["allow", "allow", "allow", "allow"]),
    ];
    for (tool, argument, expected) in rows {
        for (mode, expected) in Mode::ALL.into_iter().zip(expected) {
            check(mode, &[], tool, argument, expected);
        }
    }
}

#[test]
fn rules_decide_before_the_mode() {
    use Mode::{AcceptEdits, Ask, Everything, ReadOnly};
    let rows: &[(Mode, &[&str], &str, &str, &str)] = &[
        // Deny wins over everything, ask over allow.
        (Everything, &["allow write", "deny write(secrets/**)"], "write", "secrets/a", "deny"),
        (Everything, &["deny write(secrets/**)"], "write", "a", "allow"),
        (Everything, &["deny read(.env)"], "read", "a/b/.env", "deny"),
        (Everything, &["deny read(.env)"], "read", "a/b/.envrc", "allow"),
        (Everything, &["ask bash(git push *)"], "bash", "git push origin", "ask"),
        (Ask, &["ask write(a)", "allow write"], "write", "sub/a", "ask"),
        (Ask, &["ask write(a)", "allow write"], "write", "b", "allow"),
        (Ask, &["allow write(src/**)"], "edit", "src/deep/lib.rs", "allow"),
        (Ask, &["allow write(src/**)"], "edit", "src", "allow"),
        (Ask, &["allow write(src/**)"], "edit", "srcs/a", "ask"),
        (Ask, &["allow write(src/*)"], "edit", "src/deep/lib.rs", "ask"),
        (Ask, &["allow edit(*.md)"], "write", "docs/a.md", "allow"),
        (Ask, &["allow bash(cat)", "allow read(~/notes/**)"], "bash", "cat < /home/ada/notes/a", "allow"),
        (Ask, &["deny read(~/notes/**)"], "read", "/home/ada/notes/a", "deny"),
        // In the path of a call, `~` is a name, as it is for the tools.
        (Ask, &[], "write", "~/../src/lib.rs", "ask"),
        (Ask, &[], "edit", "~/a", "ask"),
        (Ask, &["deny read(secrets/**)"], "read", "~/../secrets/a", "deny"),
        (Everything, &["deny write(secrets/**)"], "bash", "echo > '~/../secrets/a'", "deny"),
        (Ask, &["allow bash(cat)", "allow read(/etc/hosts)"], "bash", "cat < /etc/hosts", "allow"),
        (Ask, &["allow bash(cat)", "allow read(/etc/hosts)"], "bash", "cat < /etc/passwd", "ask"),
        (ReadOnly, &["allow write"], "write", "a", "deny"),
        (ReadOnly, &["allow bash"], "bash", "ls", "deny"),
        // Commands by their words.
        (Ask, &["allow bash"], "bash", "rm -rf / && $X", "allow"),
        (Ask, &["allow bash(git status)"], "bash", "git status", "allow"),
        (Ask, &["allow bash(git status)"], "bash", "git status -s", "ask"),
        (Ask, &["allow bash(git log *)"], "bash", "git log", "allow"),
        (Ask, &["allow bash(git log *)"], "bash", "git log --oneline -- \"$FILE\"", "allow"),
        (Ask, &["allow bash(git log *)"], "bash", "git $X log", "ask"),
        (Ask, &["allow bash(git log *)"], "bash", "git push", "ask"),
        (Ask, &["allow bash(cargo *)", "allow bash(head *)"], "bash", "cargo test 2>&1 | head -5", "allow"),
        (Ask, &["allow bash(cargo *)"], "bash", "cargo test 2>&1 | tee log", "ask"),
        (Ask, &["allow bash(cargo *)"], "bash", "cd crates && cargo test", "allow"),
        (Ask, &["allow bash(./build *)"], "bash", "./build all", "allow"),
        (Ask, &["allow bash(./build *)"], "bash", "cd other && ./build all", "ask"),
        (
            Ask,
            &["allow bash(sh run.sh)", "allow bash(sh ./run.sh)"],
            "bash",
            "cd other && sh ./run.sh",
            "ask",
        ),
        (Ask, &["allow bash(cargo *)"], "bash", "RUSTC_WRAPPER=x cargo test", "ask"),
        (Ask, &["allow bash(RUST_LOG=* cargo *)"], "bash", "RUST_LOG=debug cargo test", "allow"),
        (Ask, &["allow bash(npm run 'a b')"], "bash", "npm run \"a b\"", "allow"),
        (Ask, &["allow bash(cat *)"], "bash", "cat a > b", "ask"),
        (Ask, &["allow bash(cat *)", "allow write(b)"], "bash", "cat a > b", "allow"),
        (Ask, &["allow bash(cat *)", "deny write(b)"], "bash", "cat a > b", "deny"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a > b", "allow"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a > ../b", "ask"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cd src && cat a > b", "ask"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a > $B", "ask"),
        // Programs run because of what is there.
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a >> .git/config", "ask"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a > sub/.GIT/hooks/b", "ask"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat a > .gitignore", "allow"),
        (AcceptEdits, &["allow bash(cat *)"], "bash", "cat .git/config > b", "allow"),
        (AcceptEdits, &["allow bash(cat *)", "allow write(.git/x)"], "bash", "cat a > .git/x", "allow"),
        (Everything, &[], "bash", "cat a > .git/config", "allow"),
        (Ask, &["allow bash(cat *)"], "bash", "cat < a", "allow"),
        (Ask, &["allow bash(cat *)"], "bash", "cat < /etc/passwd", "ask"),
        (Ask, &["allow bash(cat *)", "deny read(.env)"], "bash", "cat < .env", "deny"),
        (Ask, &["allow bash(cat *)"], "bash", "cat a >/dev/null 2>&1", "allow"),
        (Ask, &["allow bash(for *)"], "bash", "for f in a b; do touch $f; done", "ask"),
        (Ask, &["allow bash(touch *)"], "bash", "for f in a b; do touch $f; done", "allow"),
        (Ask, &["allow bash(cat *)"], "bash", "cat <<'EOF'\n$(rm x)\nEOF", "allow"),
        (Ask, &["allow bash(cat *)"], "bash", "cat <<EOF\n$(rm x)\nEOF", "ask"),
        (Everything, &["deny bash"], "bash", "ls", "deny"),
        // A word that is known only when the command runs may be the one that is denied.
        (Everything, &["deny bash(git push *)"], "bash", "git $X origin", "ask"),
        (Everything, &["deny bash(git push)"], "bash", "git push $X", "ask"),
        (Everything, &["ask bash"], "bash", "ls", "ask"),
        // Other tools.
        (Ask, &["allow refund"], "refund", "", "allow"),
        (Ask, &["allow ref*"], "refund", "", "allow"),
        (Everything, &["deny *"], "refund", "", "deny"),
        (Everything, &["ask refund"], "refund", "", "ask"),
        (Ask, &["deny look"], "look", "", "deny"),
        (Ask, &["deny ask_user"], "ask_user", "", "deny"),
    ];
    for (mode, rules, tool, argument, expected) in rows {
        check(*mode, rules, tool, argument, expected);
    }
}

#[test]
fn rules_hold_for_where_a_link_leads() {
    use Mode::{AcceptEdits, Ask};
    let rows = [
        (AcceptEdits, "read", "a", "/srv/secrets/key", "deny"),
        (AcceptEdits, "read", "/data/x", "/srv/secrets/key", "deny"),
        (AcceptEdits, "read", "a", "/srv/open", "allow"),
        // The tool refuses it.
        (AcceptEdits, "write", "a", "/elsewhere/a", "allow"),
        (AcceptEdits, "write", "a", "/srv/b", "allow"),
        // A link to the workspace, and a workspace that is named by a link: the tool accepts both.
        (Ask, "write", "/data/link/a", "/srv/a", "ask"),
        (Ask, "write", "a", "/data/real/a", "ask"),
        (Ask, "read", "/data/link/a", "/srv/a", "allow"),
        (Ask, "write", "/data/a", "/data/b", "allow"),
    ];
    for (mode, tool, path, resolved, expected) in rows {
        let policy = policy(mode, &["deny read(secrets/**)"]);
        let arguments = json!({ "path": path });
        let verdict = policy.judge(&Call::new(tool, &arguments).resolved(Some(Path::new(resolved))));
        assert_eq!(word(&verdict), expected, "{mode} {tool} {path} -> {resolved}: {verdict:?}");
    }
}

#[test]
fn what_is_offered_allows_what_was_asked() {
    let rows: &[(&str, &str, &[&str])] = &[
        ("bash", "git commit -m 'a b'", &["bash(git commit *)"]),
        ("bash", "git --git-dir=x log", &["bash(git --git-dir=x log)"]),
        ("bash", "cargo test x | grep FAILED", &["bash(cargo test *)", "bash(grep *)"]),
        ("bash", "cargo test", &["bash(cargo test *)"]),
        ("bash", "cargo test --config a=b", &["bash(cargo test --config a=b)"]),
        ("bash", "git log --output=a", &["bash(git log --output=a)"]),
        ("bash", "git diff $X", &[]),
        ("bash", "git commit -m \"$MESSAGE\"", &["bash(git commit *)"]),
        ("bash", "git add src/*.rs", &["bash(git add *)"]),
        ("bash", "git switch -c feature", &["bash(git switch *)"]),
        ("bash", "git show stash@{0}", &["bash(git show *)"]),
        ("bash", "wc $X", &["bash(wc *)"]),
        ("bash", "cat a b", &["bash(cat *)"]),
        ("bash", "pytest a.py", &["bash(pytest a.py)"]),
        ("bash", "rm -rf target", &["bash(rm -rf target)"]),
        ("bash", "rm -rf $X", &[]),
        ("bash", "sudo -n true", &["bash(sudo -n true)"]),
        ("bash", "sh -c 'a b'", &["bash(sh -c 'a b')"]),
        ("bash", "A=1 make", &["bash(A=1 make)"]),
        ("bash", "cargo test > out", &["bash(cargo test *)", "write(out)"]),
        ("bash", "curl $X", &[]),
        ("bash", "eval $X; ls", &[]),
        ("write", "src/deep/a.rs", &["write(src/deep/**)"]),
        ("write", "a.rs", &["write(a.rs)"]),
        ("bash", "pwd > /etc/hosts", &["write(/etc/**)"]),
        ("write", "src/a[1].rs", &[]),
        ("refund", "", &["refund"]),
    ];
    for (tool, argument, offers) in rows {
        let arguments = arguments(tool, argument);
        let call = Call::new(tool, &arguments);
        let mut policy = policy(Mode::Ask, &[]);
        let Verdict::Ask(question) = policy.judge(&call) else { panic!("{tool} {argument} does not ask") };
        assert_eq!(question.offers, *offers, "{tool} {argument}");
        for offer in &question.offers {
            policy.add(Effect::Allow, offer, "the user").expect("an offered rule is valid");
        }
        if !offers.is_empty() {
            assert_eq!(policy.judge(&call), Verdict::Allow, "{tool} {argument}");
        }
    }
}

/// "Do not ask again" about a command that runs its arguments is about the same arguments.
#[test]
fn no_offer_allows_to_run_other_programs() {
    let rows = [
        "time ls", "time -p ls", "busybox ls", "toybox ls", "setsid ls", "stdbuf -o0 ls", "ionice ls",
        "chrt 1 ls", "taskset 1 ls", "strace ls", "ltrace ls", "su -c ls", "pkexec ls", "runuser x ls",
        "unshare ls", "nsenter ls", "bwrap ls", "flock f ls", "watch ls", "parallel ls", "script -c ls",
        "unbuffer ls", "systemd-run ls", "sg x ls", "screen ls", "tmux new ls", "at now", "entr ls",
        "gdb --args ls", "valgrind ls", "perf stat ls", "fd -x ls", "fakeroot ls", "proot ls", "xvfb-run ls",
        "setarch ls", "linux64 ls", "hyperfine ls", "eatmydata ls", "ssh-agent ls", "sshpass ls", "nice ls",
        "env ls", "timeout 1 ls", "builtin ls", "command ls", "nohup ls", "uv run ls", "poetry run ls",
        "pipenv run ls", "bundle exec ls", "npm exec ls", "npm x ls", "pnpm exec ls", "yarn exec ls",
        "bun x ls", "mise exec ls", "nix run ls", "direnv exec . ls", "op run ls", "docker exec c ls",
        "docker run i ls", "podman exec c ls", "kubectl exec p ls", "rustup run x ls",
        "git submodule foreach ls", "git bisect run ls", "git rebase --exec ls", "git difftool -x ls",
        "git filter-branch ls", "git fetch --upload-pack ls", "git push --receive-pack ls",
        "git config x ls", "git grep -Ols x", "go run ls", "go test -exec ls", "deno run ls", "deno eval ls",
        "gh alias set ls", "sort --compress-program ls", "rg --pre ls", "zip -TT ls", "tar -I ls",
        "vim -c ls", "less ls", "man -P ls", "psql -c ls", "sqlite3 ls", "gcc -wrapper ls",
        "gcc-14 -wrapper ls", "cmake -P ls", "python3.12 ls", "node ls", "lua5.4 ls", "tclsh ls",
        "socat EXEC:ls", "crontab ls", "cp ls a", "export ls=1", "declare -x ls=1", "readonly ls", "read ls",
        "mapfile ls", "getopts a ls", "printf -v ls x", "printf ls", "split --filter=ls", "capsh -- ls",
        "choom ls", "dpkg-architecture -c ls", "uclampset ls", "ip netns exec ls", "ld.so ls",
        "bat --pager ls", "pylint ls", "apt-get install ls", "m4 ls", "nodemon ls", "concurrently ls",
        "cross-env ls", "tsx ls", "xterm -e ls", "git remote-ext ls", "git web--browse ls",
        "git merge -s ls", "git -c alias.x=ls x", "git log --output=ls", "git diff --ext-diff ls",
        "git stash show --outp=ls", "apt list -o Dir::Bin::dpkg=ls", "kubectl get pods --kubeconfig ls",
        "npm view x --git=ls", "npm audit ls", "pip list --log-file=ls", "gh repo ls", "gh pr ls",
        "helm list --kubeconfig ls", "rustup toolchain link a ls", "cargo fmt ls", "cargo add ls",
        "cargo clippy -- -Clinker=ls", "cargo test --manifest-path ls", "go list --toolexec=ls",
        "cargo run ls", "cargo build --config ls", "npm run ls", "npm test ls", "pnpm run ls", "pytest ls",
        "pkill ls", "killall ls", "npx ls", "an-unknown-program ls",
    ];
    for command in rows {
        let judge =
            |policy: &Policy, command: &str| policy.judge(&Call::new("bash", &json!({ "command": command })));
        let mut policy = policy(Mode::Ask, &[]);
        let Verdict::Ask(question) = judge(&policy, command) else { panic!("{command} does not ask") };
        assert_eq!(question.offers, [format!("bash({command})")]);
        policy.add(Effect::Allow, &question.offers[0], "the user").expect("an offered rule is valid");
        assert_eq!(judge(&policy, command), Verdict::Allow, "{command}");
        let other = command.replace("ls", "touch");
        assert!(other == command || judge(&policy, &other) != Verdict::Allow, "{other} runs");
        assert!(
            judge(&policy, &format!("{command} b")) != Verdict::Allow,
            "{command} runs with other arguments"
        );
    }
}

/// A rule with a final `*` does not allow an option that names another program, unless the rule has the option.
#[test]
fn further_words_do_not_name_other_programs() {
    let rows = [
        ("bash(cargo test *)", "cargo test a --nocapture", "allow"),
        ("bash(cargo test *)", "cargo test --config x", "ask"),
        ("bash(cargo test *)", "cargo test --config=x", "ask"),
        ("bash(cargo *)", "cargo build --manifest-path /tmp/Cargo.toml", "ask"),
        ("bash(cargo *)", "cargo build $X", "ask"),
        ("bash(cargo test --config *)", "cargo test --config x", "allow"),
        ("bash(git *)", "git log -p", "allow"),
        ("bash(git *)", "git diff --outp=a", "ask"),
        ("bash(git *)", "git -c alias.x=!touch x", "ask"),
        ("bash(git *)", "git log $X", "ask"),
        ("bash(git *)", "git log -- $X", "allow"),
        ("bash(git *)", "git switch -c feature", "allow"),
        ("bash(git *)", "git commit -m \"$MESSAGE\"", "allow"),
        ("bash(git *)", "git grep -c x", "allow"),
        ("bash(git *)", "git grep -Otouch x", "ask"),
        ("bash(git *)", "git push --receive-pack=touch x", "ask"),
        ("bash(git *)", "git merge -s touch x", "ask"),
        ("bash(git *)", "git $X", "ask"),
        ("bash(/usr/bin/git *)", "/usr/bin/git diff --output=a", "ask"),
        ("bash(go test *)", "go test --exec=touch", "ask"),
        ("bash(go test *)", "go test -run A ./...", "allow"),
        ("bash(cargo *)", "cargo clippy -- -D warnings", "allow"),
        ("bash(wc *)", "wc $X", "allow"),
        ("bash", "git -c alias.x=!touch x", "allow"),
        // What a script chooses as its programs is not what `ls` says.
        ("bash(export *)", "export A=bin; ls", "allow"),
        ("bash(export *)", "export PATH=bin; ls", "ask"),
        ("bash(read *)", "read PATH <<< bin; ls", "ask"),
        ("bash(printf *)", "printf -v PATH %s bin; ls", "ask"),
        ("bash(declare *)", "declare -x PATH=bin; ls", "ask"),
        ("bash(declare *)", "declare -n r='a[$(touch b)]'; echo $r", "ask"),
    ];
    for (rule, command, expected) in rows {
        let policy = policy(Mode::Ask, &[&format!("allow {rule}")]);
        let verdict = policy.judge(&Call::new("bash", &json!({ "command": command })));
        assert_eq!(word(&verdict), expected, "{rule} {command}: {verdict:?}");
    }
}

#[test]
fn invalid_rules_are_refused_and_an_invalid_policy_denies() {
    let rows = [
        ("", "begins with a tool's name"),
        ("bash(git status", "parenthesis"),
        ("bash()", "names no command"),
        ("bash('git)", "quotation mark"),
        ("write()", "names no path"),
        ("write(../a)", "`..`"),
        ("write(a[)", "unclosed character class"),
        ("refund(120)", "only read, write and bash"),
        ("grep(a)", "write `read`"),
        ("rm -rf", "begins with a tool's name"),
    ];
    for (rule, problem) in rows {
        let error = policy(Mode::Ask, &[]).add(Effect::Allow, rule, "the test").expect_err(rule).to_string();
        assert!(error.contains(problem) && error.contains(rule), "{rule}: {error}");
    }
    let broken = Policy::invalid("line 3 is not a rule");
    for (tool, argument) in [("read", "a"), ("write", "a"), ("bash", "ls"), ("look", ""), ("refund", "")] {
        let arguments = arguments(tool, argument);
        let verdict = broken.judge(&Call::new(tool, &arguments).read_only(true));
        assert!(matches!(&verdict, Verdict::Deny(why) if why.contains("line 3")), "{tool}: {verdict:?}");
    }
}

#[test]
fn what_might_run_where_nobody_is_asked() {
    let rows: &[(Mode, &[&str], Subject, bool)] = &[
        (Mode::Ask, &[], Subject::Read, true),
        (Mode::Ask, &[], Subject::Write, false),
        (Mode::Ask, &["allow write(a)"], Subject::Write, true),
        (Mode::Ask, &["allow write(a)"], Subject::Bash, false),
        (Mode::AcceptEdits, &[], Subject::Write, true),
        (Mode::AcceptEdits, &[], Subject::Bash, false),
        (Mode::AcceptEdits, &["allow bash(ls)"], Subject::Bash, true),
        (Mode::Everything, &[], Subject::Bash, true),
        (Mode::ReadOnly, &["allow bash(ls)"], Subject::Bash, false),
    ];
    for (mode, rules, subject, expected) in rows {
        assert_eq!(policy(*mode, rules).might_allow(subject), *expected, "{mode} {rules:?} {subject:?}");
    }
}

#[test]
fn names_of_modes() {
    for mode in Mode::ALL {
        assert_eq!(mode.as_str().parse(), Ok(mode));
        assert_eq!(mode.as_str().replace('_', "-").parse(), Ok(mode));
        assert_eq!(serde_json::to_value(mode).expect("a name"), mode.as_str());
    }
    assert!("yolo".parse::<Mode>().expect_err("no mode").to_string().contains("accept_edits"));
}
