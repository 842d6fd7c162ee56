//! What is known of programs by their names: which run the commands in their arguments, and which are offered with any
//! further words.
//!
//! Invariants: these are the only lists of programs. The rules that object are held against what wrappers run
//! ([`wraps`]); of a program that is not known to be harmless only the exact words are offered ([`open_words`]).

use crate::shell::Word;

/// Commands that run the command in their arguments.
const WRAPPERS: &[&str] = &[
    "at", "aws-vault", "batch", "bubblewrap", "builtin", "bunx", "busybox", "bwrap", "caffeinate", "capsh",
    "catchsegv", "choom", "chronic", "chroot", "chrt", "command", "concurrently", "coproc", "cpulimit",
    "cross-env", "daemonize", "dbus-run-session", "doas", "doppler", "dotenv", "dpkg-architecture",
    "eatmydata", "entr", "env", "exec", "expect", "fakeroot", "faketime", "fd", "fdfind", "find", "firejail",
    "flock", "gdb", "gdbserver", "heaptrack", "hyperfine", "i386", "ionice", "ld-linux-aarch64.so.1",
    "ld-linux-x86-64.so.2", "ld.so", "linux32", "linux64", "lldb", "ltrace", "multitime", "nice", "nodemon",
    "nohup", "npx", "nsenter", "numactl", "parallel", "perf", "pipx", "pkexec", "pnpx", "prlimit", "proot",
    "proxychains", "proxychains4", "rlwrap", "rr", "run-parts", "runuser", "samply", "screen", "script",
    "sem", "setarch", "setpriv", "setsid", "sg", "ssh", "ssh-agent", "sshpass", "start-stop-daemon",
    "stdbuf", "strace", "su", "sudo", "sudo-rs", "systemd-inhibit", "systemd-run", "taskset", "then", "time",
    "timeout", "tini", "tmux", "torify", "torsocks", "toybox", "trap", "uclampset", "unbuffer", "unshare",
    "uvx", "valgrind", "watch", "watchexec", "x86_64", "xargs", "xterm", "xvfb-run",
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

/// Commands that are offered with any further words: they read, compare, count and print, or make folders and empty files.
/// No word makes them run another program or change what a file holds.
const OPEN: &[&str] = &[
    "b2sum", "basename", "cal", "cat", "cksum", "cmp", "column", "comm", "cut", "df", "diff", "dirname",
    "du", "egrep", "expand", "fgrep", "fold", "free", "grep", "head", "hexdump", "id", "join", "jq", "ls",
    "lsblk", "lscpu", "md5sum", "mkdir", "nl", "nproc", "numfmt", "od", "paste", "pgrep", "ps", "readlink",
    "realpath", "rev", "seq", "sha1sum", "sha224sum", "sha256sum", "sha384sum", "sha512sum", "sleep", "stat",
    "strings", "tac", "tail", "touch", "tr", "uname", "unexpand", "uptime", "wc", "whereis", "which",
    "whoami",
];

/// Subcommands that are offered with any further words but those that [`may_name`] finds. What the tests and the build
/// scripts of a project run does not depend on further words.
const OPEN_SUBCOMMANDS: &[(&str, &[&str])] = &[
    ("cargo", &["bench", "build", "check", "clippy", "doc", "metadata", "test", "tree"]),
    ("docker", &["images", "inspect", "logs", "ps"]),
    (
        "git",
        &[
            "add", "blame", "branch", "cat-file", "check-ignore", "checkout", "commit", "describe", "diff",
            "log", "ls-files", "ls-tree", "merge-base", "mv", "reflog", "restore", "rev-list", "rev-parse",
            "shortlog", "show", "stash", "status", "switch", "tag",
        ],
    ),
    ("podman", &["images", "inspect", "logs", "ps"]),
];

/// Options that name what else a program runs, or a file that it writes: of all subcommands of a program, or of these.
const NAMING: &[(&str, &[&str], &[&str])] = &[
    ("cargo", &[], &["--config", "--manifest-path", "-C", "-Z"]),
    ("git", &["diff", "format-patch", "log", "reflog", "show", "stash"], &["--ext-diff", "--output"]),
    ("git", &["grep"], &["--open-files-in-pager", "-O"]),
    (
        "git",
        &["archive", "clone", "fetch", "ls-remote", "pull", "push"],
        &["--exec", "--receive-pack", "--upload-pack", "-u"],
    ),
    ("git", &["cherry-pick", "merge", "pull", "rebase", "revert"], &["--exec", "--strategy", "-s", "-x"]),
    ("go", &[], &["--exec", "--toolexec", "--vettool", "-exec", "-toolexec", "-vettool"]),
];

/// Options of `git` before the subcommand that name what else it runs.
const NAMING_FOR_GIT: &[&str] = &["--config-env", "--exec-path", "--git-dir", "-C", "-c"];

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

/// Returns how many words of a command say what it does, if any further ones may follow: its name, and a subcommand.
pub(crate) fn open_words(name: &str, arguments: &[Word]) -> Option<usize> {
    if OPEN.contains(&name) {
        return Some(1);
    }
    let subcommand = arguments.first().filter(|word| !word.is_dynamic)?;
    has(OPEN_SUBCOMMANDS, name, &subcommand.text).then_some(2)
}

/// Whether one of the words of a command behind the first `fixed` ones may name what else it runs, or a file that it
/// writes. Behind `--` there are no options of `git`; other programs pass such words on.
pub(crate) fn may_name(words: &[Word], fixed: usize) -> bool {
    let Some((name, arguments)) = words.split_first() else { return false };
    let name = name.text.rsplit('/').next().unwrap_or_default();
    let at = arguments.iter().position(|word| !word.text.starts_with('-')).unwrap_or(arguments.len());
    let subcommand = arguments.get(at).map_or("", |word| &*word.text);
    let tables: Vec<&[&str]> = NAMING
        .iter()
        .filter(|(known, of, _)| *known == name && (of.is_empty() || of.contains(&subcommand)))
        .map(|(_, _, options)| *options)
        .collect();
    let is_git = name == "git";
    let further = arguments.iter().enumerate().skip(fixed.saturating_sub(1));
    further.take_while(|(_, word)| !is_git || word.is_dynamic || word.text != "--").any(|(place, word)| {
        let (tables, is_known): (&[&[&str]], bool) = match is_git && place <= at {
            true if place == at && !word.is_dynamic => return false,
            true => (&[NAMING_FOR_GIT], true),
            false => (&tables, !tables.is_empty()),
        };
        is_known && (may_be_option(word) || tables.iter().any(|options| is_one_of(word, options)))
    })
}

/// Whether a word that is known only when the command runs may be an option then.
fn may_be_option(word: &Word) -> bool {
    word.is_dynamic
        && word.text.starts_with(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | '/' | '@' | '_'))
}

fn is_one_of(word: &Word, options: &[&str]) -> bool {
    let given = word.text.split('=').next().unwrap_or_default();
    // Long options may be shortened, and a short one may have its value in the same word.
    let is_option = |option: &str| match option.starts_with("--") {
        true => given.len() > 2 && option.starts_with(given),
        false => word.text.starts_with(option),
    };
    options.iter().any(|option| is_option(option))
}

fn has(table: &[(&str, &[&str])], name: &str, subcommand: &str) -> bool {
    table.iter().any(|(known, subcommands)| *known == name && subcommands.contains(&subcommand))
}
