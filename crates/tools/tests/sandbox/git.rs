//! What git runs outside the sandbox after a command that prepared something for it, and what it must still do inside.
//!
//! Invariants: each attack is seen to work without a sandbox, and in none of them does git run a program of it; git's own
//! work is the same with and without a sandbox.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::environments::{Environment, block_on, call, registry, sandbox};
use crate::say;
use crate::victims::Victims;

/// Makes a repository at `$G` whose configuration runs a program, and an entry of the index for `$M`. The program leaves a
/// file that tells.
const MADE: &str = "mkdir -p $G $M; cp -r .git/objects .git/refs .git/HEAD $G/; \
     printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = touch %s/ran;:\\n\\tworktree = %s/%s\\n' $BASE $WS $M \
     > $G/config; git -c safe.directory='*' update-index --add --cacheinfo 160000,$(printf %040d 1),$M; ";

/// Where the repository and the entry are, and what leads git there. The user then runs `git status` in the workspace.
const ATTACKS: &[(&str, &str, &str)] = &[
    (".git/modules/m", "m", "echo 'gitdir: ../.git/modules/m' > m/.git"),
    (".git/x", "m", "echo 'gitdir: ../.git/x' > m/.git"),
    (".git/x", "m", "ln -s ../.git/x m/.git"),
    (".git/objects/aa/x", "m", "echo gitdir: $WS/.git/objects/aa/x > m/.git"),
    ("target/g", "m", "echo 'gitdir: ../target/g' > m/.git"),
    ("target/g", "m", "ln -s ../target/g m/.git"),
    ("node_modules/p/.git", "node_modules/p", ""),
    ("m/.git", "m", ""),
    ("h/g", "m", "echo 'gitdir: ../h/g' > m/.git; chmod 0111 h"),
    // What stands in the way of making it safe.
    (".git/x", "m", "echo 'gitdir: ../.git/x' > m/.git; mkdir -p .git/x/config.not-used/x"),
    (".git/x", "m", "echo 'gitdir: ../.git/x' > m/.git; chmod 0555 .git/x"),
    ("e/g", "e/x", "rm e/g/HEAD; echo ../e/g > .git/commondir; chmod 0555 .git"),
    // Two commands, of which each seems harmless.
    (
        ".git/x",
        "m",
        "mv .git/x/HEAD .git/x/H; echo 'gitdir: ../.git/x' > m/.git; NEXT mv .git/x/H .git/x/HEAD",
    ),
    ("target/g", "m", "mv target/g/HEAD h; echo 'gitdir: ../target/g' > m/.git; NEXT mv h target/g/HEAD"),
    (
        ".git/x",
        "m",
        "mv .git/x/config c; echo 'gitdir: ../.git/x' > m/.git; touch .git/x/config; NEXT cat c > .git/x/config || mv c .git/x/config",
    ),
];

fn git(folder: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*"]).args(arguments).current_dir(folder);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn is_missing() -> bool {
    let is_missing = !git(Path::new("/"), &["--version"]);
    if is_missing {
        say("SKIPPED: git is not installed");
    }
    is_missing
}

pub(crate) fn runs_nothing_of_a_command() {
    if is_missing() {
        return;
    }
    let environments = [&[Environment::Unprotected], &Environment::SANDBOXES[..]].concat();
    for environment in environments {
        for (repository, entry, then) in ATTACKS {
            let victims = Victims::new();
            let Some(options) = environment.options(sandbox(&victims)) else { continue };
            let workspace = victims.workspace();
            std::fs::write(victims.base.join("home/.gitconfig"), "[safe]\n\tdirectory = *\n")
                .expect("written");
            let mut outputs = Vec::new();
            block_on(async {
                let registry = registry(&victims, options);
                let commands = format!("G={repository}; M={entry}; {MADE}{then}");
                for command in commands.split("NEXT") {
                    outputs.push(call(&registry, command, 20_000).await.1);
                }
            });
            git(&workspace, &["status"]);
            let has_run = victims.base.join("ran").exists();
            // Only mounts keep a known configuration as it is.
            let is_config = then.contains("touch .git/x/config");
            let expect = environment == Environment::Unprotected
                || environment == Environment::LandlockAlone && is_config;
            assert_eq!(has_run, expect, "{environment:?} {repository} {then}: {outputs:?}");
        }
    }
}

pub(crate) fn work_goes_on() {
    // Each in the workspace, after the one before it.
    const WORK: [&str; 8] = [
        "git init -q r && cd r && git config user.email a@b && git config user.name a && echo 1 > a && git add a && git commit -qm 1",
        "cd r && git worktree add -q ../w && cd ../w && echo 2 > b && git add b && git commit -qm 2",
        "cd w && git status --short && echo 3 > b && git stash -q && git stash pop -q && git commit -qam 3",
        "cd r && echo 4 > c && git add c && git commit -qm 4 && git rebase -q w && git gc -q && git fsck",
        "git init -q s && cd s && git config user.email a@b && git config user.name a && git -c protocol.file.allow=always submodule --quiet add ../r m && git submodule --quiet update && git commit -qm 5",
        "cd s && git submodule status && git -C m checkout -q HEAD~1 && git -C m log --oneline && git commit -qam 6",
        "cd s && git status --short && git -C m log --oneline && git gc -q && git -C m gc -q",
        "cd r && git worktree list | grep -q w && git -C ../w log --oneline | grep -q 3",
    ];
    if is_missing() {
        return;
    }
    for environment in [&[Environment::Unprotected], &Environment::SANDBOXES[..]].concat() {
        let victims = Victims::new();
        let Some(options) = environment.options(sandbox(&victims)) else { continue };
        std::fs::write(victims.base.join("home/.gitconfig"), "[safe]\n\tdirectory = *\n").expect("written");
        block_on(async {
            let registry = registry(&victims, options);
            for work in WORK {
                let (_, output) = call(&registry, &format!("{work} && echo done"), 60_000).await;
                assert!(output.trim_end().ends_with("done"), "{environment:?} {work}: {output}");
            }
        });
        // The user goes on with it.
        for (folder, arguments) in
            [("r", &["log"][..]), ("w", &["status"]), ("s", &["submodule", "status"]), ("s/m", &["log"])]
        {
            assert!(
                git(&victims.workspace().join(folder), arguments),
                "{environment:?} {folder} {arguments:?}"
            );
        }
    }
}
