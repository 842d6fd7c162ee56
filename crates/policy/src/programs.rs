//! What is known of programs by their names: which run the commands in their arguments, and which others are never
//! offered with any arguments.
//!
//! Invariants: this is the only list of programs that run others. The rules that object are held against what they run
//! ([`wraps`]), and of each only the exact words are offered ([`is_exact`]).

use crate::shell::Word;

/// Commands that run the command in their arguments.
const WRAPPERS: &[&str] = &[
    "at",
    "aws-vault",
    "batch",
    "bubblewrap",
    "builtin",
    "busybox",
    "bwrap",
    "caffeinate",
    "catchsegv",
    "chronic",
    "chroot",
    "chrt",
    "command",
    "coproc",
    "cpulimit",
    "daemonize",
    "dbus-run-session",
    "doas",
    "doppler",
    "dotenv",
    "eatmydata",
    "entr",
    "env",
    "exec",
    "expect",
    "faketime",
    "fakeroot",
    "fd",
    "fdfind",
    "find",
    "firejail",
    "flock",
    "gdb",
    "gdbserver",
    "heaptrack",
    "hyperfine",
    "i386",
    "ionice",
    "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2",
    "linux32",
    "linux64",
    "lldb",
    "ltrace",
    "multitime",
    "nice",
    "nohup",
    "nsenter",
    "numactl",
    "parallel",
    "perf",
    "pkexec",
    "prlimit",
    "proot",
    "proxychains",
    "proxychains4",
    "rlwrap",
    "rr",
    "run-parts",
    "runuser",
    "samply",
    "screen",
    "script",
    "sem",
    "setarch",
    "setpriv",
    "setsid",
    "sg",
    "ssh",
    "ssh-agent",
    "sshpass",
    "start-stop-daemon",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "sudo-rs",
    "systemd-inhibit",
    "systemd-run",
    "taskset",
    "then",
    "time",
    "timeout",
    "tini",
    "tmux",
    "torify",
    "torsocks",
    "toybox",
    "trap",
    "unbuffer",
    "unshare",
    "valgrind",
    "watch",
    "watchexec",
    "x86_64",
    "xargs",
    "xvfb-run",
];

/// Commands with a subcommand that runs the command in its arguments.
const WRAPPING: &[(&str, &[&str])] = &[
    ("bun", &["exec", "x"]),
    ("bundle", &["exec"]),
    ("composer", &["exec"]),
    ("conda", &["run"]),
    ("direnv", &["exec"]),
    ("docker", &["exec", "run"]),
    ("git", &["bisect", "difftool", "filter-branch", "for-each-repo", "rebase", "submodule"]),
    ("hatch", &["run"]),
    ("kubectl", &["exec", "run"]),
    ("mamba", &["run"]),
    ("micromamba", &["run"]),
    ("mise", &["exec", "x"]),
    ("nix", &["develop", "run", "shell"]),
    ("npm", &["exec", "x"]),
    ("op", &["run"]),
    ("pdm", &["run"]),
    ("pipenv", &["run"]),
    ("pnpm", &["dlx", "exec"]),
    ("podman", &["exec", "run"]),
    ("poetry", &["run"]),
    ("rustup", &["run"]),
    ("rye", &["run"]),
    ("uv", &["run"]),
    ("yarn", &["dlx", "exec"]),
];

/// Of the commands that run others, those that do so in the folder that they are started in, unless an option says
/// otherwise.
const KEEPING_FOLDER: &[&str] = &[
    "builtin", "command", "doas", "env", "exec", "ionice", "nice", "nohup", "setsid", "stdbuf", "sudo",
    "time", "timeout", "xargs",
];

/// Shells, which run the text after `-c`.
const SHELLS: &[&str] = &["sh", "bash", "dash", "zsh", "ksh", "fish", "ash", "mksh", "rbash"];

/// Other commands of which only the exact words are offered: they run what a file, a text or an option says, delete or
/// replace files, or reach the network.
const EXACT: &[&str] = &[
    // Interpreters, and what has commands of its own.
    "R",
    "Rscript",
    "awk",
    "clojure",
    "csh",
    "dc",
    "ed",
    "elixir",
    "emacs",
    "erl",
    "eval",
    "ex",
    "gawk",
    "ghci",
    "gnuplot",
    "groovy",
    "guile",
    "iex",
    "ipython",
    "irb",
    "java",
    "jshell",
    "julia",
    "kotlin",
    "less",
    "lua",
    "luajit",
    "man",
    "mawk",
    "mongosh",
    "more",
    "mysql",
    "nano",
    "nawk",
    "node",
    "nodejs",
    "nu",
    "nvim",
    "ocaml",
    "octave",
    "osascript",
    "perl",
    "php",
    "psql",
    "pwsh",
    "pypy",
    "python",
    "racket",
    "ruby",
    "runghc",
    "runhaskell",
    "sbcl",
    "scala",
    "sed",
    "source",
    "sqlite",
    "swift",
    "tclsh",
    "tcsh",
    "vi",
    "view",
    "vim",
    "wish",
    "xonsh",
    ".",
    // What builds, and has options that name programs.
    "ant",
    "bazel",
    "bundle",
    "c++",
    "cc",
    "clang",
    "clang++",
    "cmake",
    "conda",
    "crontab",
    "direnv",
    "g++",
    "gcc",
    "guix",
    "hatch",
    "just",
    "ld",
    "make",
    "mamba",
    "meson",
    "micromamba",
    "mise",
    "mvn",
    "ninja",
    "nix",
    "nix-shell",
    "nox",
    "op",
    "pdm",
    "pipenv",
    "pipx",
    "rake",
    "rustc",
    "rye",
    "scons",
    "sort",
    "task",
    "tox",
    "rg",
    "ag",
    "zip",
    "newgrp",
    "bunx",
    "npx",
    "pnpx",
    "uvx",
    "vagrant",
    "ansible",
    "terraform",
    // What changes or replaces any file.
    "chmod",
    "chown",
    "cp",
    "dd",
    "install",
    "kill",
    "ln",
    "mv",
    "patch",
    "rm",
    "shred",
    "tar",
    "bsdtar",
    "cpio",
    "tee",
    "truncate",
    "unlink",
    // The network.
    "aria2c",
    "curl",
    "ftp",
    "lftp",
    "nc",
    "ncat",
    "netcat",
    "rsync",
    "scp",
    "sftp",
    "socat",
    "telnet",
    "wget",
];

/// Commands whose first argument says what they do.
const WITH_SUBCOMMANDS: &[&str] = &[
    "apt", "brew", "bun", "cargo", "composer", "deno", "docker", "dotnet", "gh", "git", "go", "gradle",
    "helm", "kubectl", "npm", "pip", "pnpm", "podman", "poetry", "rustup", "uv", "yarn",
];

/// Other subcommands of which only the exact words are offered, for the same reasons as [`EXACT`].
const EXACT_SUBCOMMANDS: &[(&str, &[&str])] = &[
    ("apt", &["install"]),
    ("brew", &["install"]),
    ("bun", &["add", "create", "install", "run"]),
    ("cargo", &["binstall", "install", "rustc"]),
    ("composer", &["create-project", "global", "require"]),
    ("deno", &["eval", "install", "run", "task", "x"]),
    ("docker", &["build", "buildx", "compose", "container", "create"]),
    ("dotnet", &["add", "exec", "new", "tool"]),
    ("gh", &["alias", "api", "codespace", "extension", "gist"]),
    (
        "git",
        &[
            "am",
            "apply",
            "archive",
            "clean",
            "clone",
            "config",
            "fetch",
            "grep",
            "hook",
            "ls-remote",
            "maintenance",
            "mergetool",
            "pull",
            "push",
            "reset",
            "send-email",
        ],
    ),
    ("go", &["build", "env", "generate", "get", "install", "run", "test", "tool", "vet"]),
    ("helm", &["install", "plugin", "template", "upgrade"]),
    ("kubectl", &["cp", "debug", "plugin"]),
    ("npm", &["add", "config", "create", "explore", "i", "init", "install", "set"]),
    ("pip", &["download", "install", "wheel"]),
    ("pnpm", &["add", "create", "i", "install"]),
    ("podman", &["build", "compose", "container", "create"]),
    ("poetry", &["add", "install"]),
    ("uv", &["add", "pip", "tool"]),
    ("yarn", &["add", "create", "global", "node"]),
];

/// Whether it is a shell.
pub(crate) fn is_shell(name: &str) -> bool {
    SHELLS.contains(&name)
}

/// Whether it runs the command in its arguments, if a subcommand among them says so.
pub(crate) fn wraps(name: &str, arguments: &[Word]) -> bool {
    WRAPPERS.contains(&name) || arguments.iter().any(|word| has(WRAPPING, name, &word.text))
}

/// Whether what it runs may be in another folder.
pub(crate) fn changes_folder(name: &str, arguments: &[Word]) -> bool {
    let may = |word: &Word| match word.text.strip_prefix('-') {
        Some(long) if long.starts_with('-') => {
            ["ch", "cw", "l"].iter().any(|start| long[1..].starts_with(start))
        }
        Some(short) => short.contains(['C', 'D']) || short.contains('i') && matches!(name, "sudo" | "doas"),
        None => false,
    };
    wraps(name, arguments) && (!KEEPING_FOLDER.contains(&name) || arguments.iter().any(may))
}

/// Whether its first argument says what it does.
pub(crate) fn has_subcommands(name: &str) -> bool {
    WITH_SUBCOMMANDS.contains(&name)
}

/// Whether other arguments could have it run other programs, or do harm.
pub(crate) fn is_exact(name: &str, arguments: &[Word]) -> bool {
    // `python3.12`, `gcc-14`
    let bare = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
    let is_known = |name: &str| WRAPPERS.contains(&name) || SHELLS.contains(&name) || EXACT.contains(&name);
    let subcommand = arguments.first().map_or("", |word| &*word.text);
    name.contains('/')
        || is_known(name)
        || is_known(bare)
        || has(WRAPPING, name, subcommand)
        || has(EXACT_SUBCOMMANDS, name, subcommand)
}

fn has(table: &[(&str, &[&str])], name: &str, subcommand: &str) -> bool {
    table.iter().any(|(known, subcommands)| *known == name && subcommands.contains(&subcommand))
}
