//! The text after the options in each command's help: examples and details.
//!
//! Invariants: each example can be typed as it is.

/// The main help: the commands in groups. It fits a screen of 100 columns and 32 rows.
pub(super) const COMMANDS: &str = "\
{about}

Usage: greenroom [PROMPT]               chat; -c resumes this folder's newest session, -r any
       greenroom -p PROMPT              answer once, also with piped input
       greenroom COMMAND [OPTIONS]      `greenroom help COMMAND` explains it

Talk:
  chat, run            Chat in the terminal; run one prompt, for scripts
  resume               Resume a session: the newest of this folder, or the given one
  init                 Have the agent write this project's AGENTS.md
Sessions:
  sessions, show       List sessions; show one, or its branches
  recall               Search all sessions
  compact, undo, fork  Summarise the older part now; take back the last turn; copy a session
  export, import       Write a session for other systems; read theirs
  delete, prune        Delete one session; delete old ones
Live:
  top                  Monitor the live sessions
  questions, answer    List the open questions of tools; answer one
  host                 Run or stop the process that shares the store between terminals
For programs:
  serve, rpc, acp      Serve an HTTP API; JSON-RPC on standard streams; an editor
  simulate, eval       Serve a simulated model; measure what compactions keep
Setup:
  login, models        Store a provider's key; list models with windows and prices
  config, usage        Show and change settings; show spending
  mcp                  List MCP servers and their tools; add or remove one
  doctor               Check the configuration, the key, the server and the store
  demo, completions    Watch a context fill, without a key; print a shell completion script";

pub(super) const DEMO_EXAMPLES: &str = "\
Examples:
  greenroom demo                      in any folder with some text files
  greenroom demo --window 16000       a smaller window fills sooner
  greenroom demo --workspace ~/src    another folder
  greenroom demo --fast | cat         no pauses, plain lines

It starts a simulated model inside this process and talks to it over HTTP on the loopback interface. The file \
tools are the real ones (read, list, grep); nothing is changed and nothing leaves this machine.";

pub(super) const RUN_EXAMPLES: &str = "\
Examples:
  greenroom -p \"What does this project do?\"
  greenroom run What does this project do?
  git diff | greenroom -p \"Review this.\" --no-tools --no-session
  greenroom run -p \"Fix the failing test.\" --allow-write --allow-shell
  greenroom run -p \"Continue.\" -c             the newest session of this folder
  greenroom run -p \"Continue.\" --session fix-the-test
  greenroom run -p \"What is wrong?\" --image a.png --max-cost 0.10 --timeout 60
  greenroom run -p \"Which files are dead?\" --output-schema '{\"type\":\"array\"}'
  greenroom run -p \"Look around.\" --simulate --json | jq .type

The answer goes to standard output: streamed at a terminal, whole to a pipe. Progress goes to standard error, \
if that is a terminal.
With --json each line is one event with `type`, `seq` and `session_id`; the last line is `run_end`, or \
`error` with `class`, `status`, `message`, `limit`, `requested` and `retryable`. With --output-schema `run_end` has the \
answer's `value`.
The first Ctrl-C ends the run and keeps partial output; the second ends the process at once.

A run is a one-shot session unless it is named: -c, -r and /resume skip it, and `greenroom sessions` lists it. \
--no-session stores no session.

Exit codes:
  0    done
  1    failed: the model could not be called, or gave no usable answer
  2    the command line, the configuration or the workspace is invalid
  3    the store is unusable: in use, full, damaged, or without that session
       (the output for a damaged session omits its losses; standard error
       says so)
  4    stopped by a guard, a budget or a time limit
  5    the session waits for the answer to a question; the program whose tool
       asked continues it
  130  interrupted";

pub(super) const CHAT_EXAMPLES: &str = "\
Examples:
  greenroom                               the same as `greenroom chat`
  greenroom \"Why does the build fail?\"   begins with this prompt
  greenroom chat --base-url http://localhost:11434/v1
  greenroom chat --session umbrella       resumes a session, or creates it
  greenroom chat --simulate               no key, no server

A session keeps its server, model, effort, permissions and folder, and is resumed with them; flags change them. Keys \
are not kept with it.

Ctrl-C interrupts the run and keeps partial output; at the prompt, Ctrl-D or Ctrl-C twice exits. `/help` \
lists the commands.";

pub(super) const MODELS_HELP: &str = "\
Examples:
  greenroom models gpt-5
  greenroom models --provider local --json | jq -r '.models[].id'

Sources of the window, in this order: your settings; the limit that the server reports; the model catalogue; the \
model's training length that the server reports; a default. A limit learned from a rejected request lowers all of \
them except your settings, until the server reports a larger limit, or for a day if it reports none.";

pub(super) const SERVE_HELP: &str = "\
Examples:
  greenroom serve                         for programs on this machine
  greenroom serve --listen 0.0.0.0:7878 --host-name build.example

Requests must present the token, which is created at the first start in the file `token` of the store's directory:
  token=$(cat ~/.local/share/greenroom/token)
  curl -H \"Authorization: Bearer $token\" http://127.0.0.1:7878/v1/sessions

Further tokens, with rights and labels, are in the configuration (`serve.tokens`). GET /openapi.json describes all routes.

The server has no TLS. Ctrl-C interrupts runs in progress and exits within 10 seconds; SIGTERM first gives them \
serve.drain_timeout_s (5) seconds to end.";

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  greenroom simulate                      a free port; the model echoes input
  greenroom simulate --listen 127.0.0.1:8080 --say Hello --say Goodbye
  greenroom simulate --script answers.yaml

The first line on standard output is the base URL, for OPENAI_BASE_URL and for \
the clients of the other APIs. A script:
  answers:
    - calls: [{ tool: weather, arguments: { city: Oslo } }]
      expect_user: umbrella            # else the call is refused
    - fault: rate_limited              # also: server_error (with status),
      retry_after_s: 1                 # loading, refused, reset, stall,
                                       # empty_stream, error_event, overflow,
                                       # malformed, eof_before_finish
    - text: Take one.
      after_ms: 300                    # before it begins; between_ms, pieces
      expect_tool_result: { tool: weather, contains: rain }

A call beyond the script is refused with 400. Ctrl-C exits, with code 1 if answers were left over, a call was \
beyond the script, an expectation was not met, or a request broke the protocol; standard error says which.";

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  dir=~/.local/share/bash-completion/completions; mkdir -p $dir
  greenroom completions bash > $dir/greenroom
  greenroom completions zsh > \"${fpath[1]}/_greenroom\"
  mkdir -p ~/.config/fish/completions
  greenroom completions fish > ~/.config/fish/completions/greenroom.fish
  source <(greenroom completions bash)    for this shell only

They apply to new shells. Commands, flags, stored sessions, models, providers and settings are completed; the \
script calls greenroom while you type, so it never needs an update.";

pub(super) const STORE_HELP: &str = "\
A session that lost entries to a damaged disk accepts no prompts until its loss is accepted. Before that, restore a \
backup of the whole store, or save the rest with `greenroom export ID`. If the lost entries belong to the \
newest part of the conversation, accepting the loss also drops the entries after them.";

pub(super) const SESSIONS_EXAMPLES: &str = "\
Examples:
  greenroom sessions --here               sessions of this folder
  greenroom sessions --unfinished         sessions with unfinished work
  greenroom sessions --no-runs            without the one-shot sessions of `run`
  greenroom sessions --label tenant=x --json | jq -r '.[].id'

Listing starts no session and changes nothing. It works even while a program has the store open.";

pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  greenroom show demo-2026                a prefix of an id is enough
  greenroom show demo-2026 --json | jq -r '.conversation[].text'
  greenroom show demo-2026 --compaction 2 what the second compaction did
  greenroom show demo-2026 --tree         its branches";

pub(super) const USAGE_EXAMPLES: &str = "\
Examples:
  greenroom usage                         all sessions, in the last 7 days
  greenroom usage tenant -n 30            each value of the label `tenant`
  greenroom usage tenant=north --hours -n 24
  greenroom usage --json | jq 'map(.cost_microdollars) | add'

Days and hours are those of UTC. Spending is summed up by the labels in limits.labels, limits.fair_by, limits.spending_by \
and of serve.tokens; the spending of deleted sessions remains in the sums.";
pub(super) const RECALL_EXAMPLES: &str = "\
Examples:
  greenroom recall retry limit            in all sessions
  greenroom recall port of the proxy --session demo-2026
  greenroom recall migration --json | jq -r '.[].text'

The words are ranked: rare ones count more, and endings do not matter. Messages that a compaction replaced are found \
like all others on a session's current path.";

pub(super) const EVAL_EXAMPLES: &str = "\
Examples:
  greenroom eval session.jsonl            after 1, 3 and 5 compactions
  greenroom eval session.jsonl --window 16000 --strategy digest
  greenroom eval demo-2026 --facts facts.jsonl --json | jq
  greenroom eval session.jsonl --set compaction.ledger=null

`context` is the share of the facts that the model still sees, `+recall` adds those that one search with their \
question finds, and `gone` is the rest. `wait` is the user's waiting time for a compaction at the recorded pace, \
`prepared` the same with preparation in the background. No model is asked.";

pub(super) const FORK_EXAMPLES: &str = "\
Examples:
  greenroom fork design-2026              a copy; its name is printed
  greenroom fork design-2026 idea --at 31 the conversation up to entry 31
  greenroom fork design-2026 tests --compact 'write the tests'
  greenroom run --session tests -p 'Begin with the parser.'

The goal directs the summary and becomes the title; the label continued_from names the original. The whole log is \
copied, so that recall finds everything in the new session.";

pub(super) const RESUME_EXAMPLES: &str = "\
Examples:
  greenroom resume                        the newest session of this folder
  greenroom chat -r                       choose from a list
  greenroom resume fix-the                the session with this prefix";

pub(super) const COMPACT_EXAMPLES: &str = "\
Examples:
  greenroom compact fix-the-test
  greenroom compact fix-the-test --focus \"the failing test\" --keep-recent 8000
  greenroom compact fix-the-test --dry-run
  greenroom compact session.jsonl --dry-run   for a file of another agent
  greenroom compact session.jsonl --dry-run --cut nearest   as other tools cut

Nothing is lost: the log keeps the replaced messages, and `greenroom show` prints them. The exit code is 0 even if \
there is nothing to compact. Ctrl-C leaves the conversation unchanged.";

pub(super) const UNDO_EXAMPLES: &str = "\
Examples:
  greenroom undo fix-the-test --dry-run
  greenroom undo fix-the-test
  greenroom undo fix-the-test --files --yes
  greenroom undo fix-the-test --to 12

`--to 12` returns to the state in which entry 12 was the newest. The conversation continues on another branch; \
nothing is lost, and `greenroom show --tree` shows both branches. The restored files are those that the session's \
tools changed, as far as they were kept (`rewind` in the configuration). A file that somebody else changed since is \
listed and left unchanged, unless you give --overwrite. `undo --to` with the last entry of the abandoned branch \
reverses an undo. Files that a command created are removed; folders and symbolic links that it created stay. The \
exit code is 1 if a file could not be restored.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  greenroom import session.jsonl
  greenroom import ~/.claude/projects/*/*.jsonl
  greenroom import ~/.codex/sessions/*/*/*/*.jsonl
  greenroom import ~/.pi/agent/sessions/*/*.jsonl --json | jq -r .session_id

Files of Claude Code, Codex and pi (versions 1 to 3) are recognised by their lines. Each file becomes one session, \
as a whole or not at all; existing sessions are never changed. If a file cannot be imported, the others still are, and \
the exit code is not 0.";

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  greenroom export fix-the-test > fix-the-test.jsonl
  greenroom export fix-the-test --output fix-the-test.jsonl";

pub(super) const QUESTIONS_EXAMPLES: &str = "\
Examples:
  greenroom questions
  greenroom questions --json | jq -r '\"\\(.session_id) \\(.question_id) \\(.text)\"'

The list works even while the asking program has the store open.";

pub(super) const ANSWER_EXAMPLES: &str = "\
Examples:
  greenroom answer order-7 12 yes
  greenroom answer order-7 12 '[\"tests\",\"docs\"]'         several choices
  greenroom answer order-7 12 '{\"seats\":2}' --by ada     a form

At a terminal, an answer that approves a call shows the call and asks for confirmation; --yes skips this. A question \
is answered once. If a host or a program has the store open, the answer is sent to it.";

pub(super) const DELETE_EXAMPLES: &str = "\
Examples:
  greenroom delete demo-20260102-030405
  greenroom delete demo-2026              a prefix of an id is enough
  greenroom delete demo-20260102-030405 --json

This cannot be undone; `greenroom export` saves a copy. A whole id, or a prefix of at least 4 characters, needs no \
confirmation; a shorter prefix needs confirmation at a terminal, and --yes elsewhere.";

pub(super) const STORE_CHECK_EXAMPLES: &str = "\
Examples:
  greenroom store check
  greenroom store check --json | jq -r '.sessions[].id'";

pub(super) const STORE_COPY_EXAMPLES: &str = "\
Examples:
  greenroom store copy --to               to the database of GREENROOM_STORE
  greenroom store copy --from postgres://me@db/greenroom --data-dir copy

No program may use either store during the copy. Nothing is overwritten: a session that the target already has must \
be identical, or the beginning of the source's session. The same command therefore continues an interrupted copy. A \
URL on the command line, with its password, is visible in the list of processes.";

pub(super) const STORE_BACKUP_EXAMPLES: &str = "\
Examples:
  greenroom store backup /backups/greenroom
  greenroom store backup \"/backups/$(date +%F)\" --json | jq .sessions

Everything acknowledged before the command is in the backup. The directory is created, or replaced if it has a backup of \
this store; unchanged segments are not copied again. A backup beside the store shares files with it: to survive a failed \
disk, it must be on another one. A damaged store is not backed up, and the last backup stays; the exit code is 3.";

pub(super) const STORE_VERIFY_EXAMPLES: &str = "\
Examples:
  greenroom store verify /backups/greenroom
  greenroom store verify /backups/greenroom --json | jq -r '.damage[]'";

pub(super) const STORE_RESTORE_EXAMPLES: &str = "\
Examples:
  greenroom store restore /backups/greenroom
  greenroom store restore /backups/greenroom --data-dir ~/restored

The backup is verified first. It is copied, and not changed.";

pub(super) const PRUNE_EXAMPLES: &str = "\
Examples:
  greenroom prune --older-than-days 90 --dry-run
  greenroom prune --keep 1000
  greenroom prune --label kind=probe --older-than-days 1
  greenroom prune                         by `retention` of the configuration

This cannot be undone. Sessions that are live, have unfinished work or an open question, or are damaged are kept in \
any case.";

pub(super) const ACCEPT_LOSS_EXAMPLES: &str = "\
Examples:
  greenroom store accept-loss fix-the-test
  greenroom store accept-loss --segment 7";

pub(super) const RPC_EXAMPLES: &str = "\
Examples:
  greenroom rpc --simulate
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}' | greenroom rpc

docs/protocol.md has the methods, docs/schema/operations.json their schemas. At the end of the input, runs in progress \
are interrupted and the process exits.";

pub(super) const ACP_EXAMPLES: &str = "\
Examples:
  greenroom acp
  greenroom acp --mode accept_edits --model gpt-5.5-mini

An editor runs this command: in Zed, for example, with this in settings.json:
  \"agent_servers\": {
    \"Greenroom\": { \"type\": \"custom\", \"command\": \"greenroom\", \"args\": [\"acp\"] }
  }

docs/guide/editors.md has other editors. Runs in progress are interrupted when the editor ends; `greenroom resume` and \
the editor resume the same sessions.";

pub(super) const CONFIG_EXAMPLES: &str = "\
Examples:
  greenroom config                        effective values and their sources
  greenroom config get compaction.threshold
  greenroom config set compaction.threshold 0.7
  greenroom config set --project model gpt-5.5-mini
  greenroom config edit                   in $EDITOR; it is checked afterwards
  greenroom config path                   the path of your own file
  mkdir -p ~/.config/greenroom
  greenroom config --default > ~/.config/greenroom/greenroom.yaml";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  greenroom top
  greenroom top --sort cost
  greenroom top --json | jq -r '.[] | select(.status == \"working\") | .id'

Enter opens a session and shows its live output. Sessions can be aborted and compacted from there and from \
the list, after a confirmation. Without a terminal, the table is printed once.";

pub(super) const HOST_EXAMPLES: &str = "\
Examples:
  greenroom host                          until a minute after its last use
  greenroom host --idle 3600              until an hour after its last use
  greenroom host --stop                   end this store's host, if it is idle
  greenroom host --stop --force           end it even if it is busy

The host is the process that has the store open. Other commands connect to its socket beside the store, which only you \
can use; `run`, `chat` and `resume` start a host if there is none. Its log is host.log in the store's directory.";

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  greenroom mcp                   connects to all, and lists their tools
  greenroom mcp github --json
  greenroom mcp add time -- uvx mcp-server-time
  greenroom mcp remove time

The model calls a tool as mcp__SERVER__TOOL. A chat asks before such a call; the rule mcp__github__get_* allows some of \
them (--allow, or permissions.allow). Servers are programs and services of your own: they run with your rights, outside \
the sandbox, in your home folder. A server that was added is used by chats and runs that start afterwards.";

pub(super) const MCP_ADD_EXAMPLES: &str = "\
Examples:
  greenroom mcp add time -- uvx mcp-server-time
  greenroom mcp add git -- uvx mcp-server-git --repository '{workspace}'
  greenroom mcp add db --env DB_URL=env:DB_URL -- uvx some-mcp-server
  greenroom mcp add docs --tools 'get_*' -- npx -y some-docs-server
  greenroom mcp add x --url https://mcp.example.com --token-env X_TOKEN

{workspace} stands for the folder of the agent's tools. A secret is never written to the file: name its variable. \
`greenroom config edit` opens the file for all other settings.";

pub(super) const MCP_REMOVE_EXAMPLES: &str = "\
Examples:
  greenroom mcp remove time";

pub(super) const LOGIN_EXAMPLES: &str = "\
Examples:
  greenroom login                         asks for the key; detects its vendor
  greenroom login anthropic
  pass show openai | greenroom login openai
  greenroom login openai --forget

The key is not echoed. It is checked with the provider and stored in keys.yaml in your configuration directory, \
which only you can read. A variable such as OPENAI_API_KEY takes precedence.";

pub(super) const INIT_EXAMPLES: &str = "\
Examples:
  greenroom init
  greenroom init --mode accept_edits

The command starts a chat in which the agent reads the project and writes its AGENTS.md, the file that tells agents how to \
work there. You are asked before a file is written.";

pub(super) const DOCTOR_EXAMPLES: &str = "\
Examples:
  greenroom doctor
  greenroom doctor --provider local
  greenroom doctor --json | jq -r '.[] | select(.ok | not) | .check'

The exit code is 2 if something needs repair. `greenroom store` has the tools for a damaged store: check, backup, verify, \
restore, accept-loss.";
