//! The ends of the helps: examples, and what a flag's line has no room for.
//!
//! Invariants: each example can be typed as it stands.

/// The end of the first help: how a script tells what happened.
pub(super) const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    failed: the model could not be asked, or gave no usable answer
  2    the command line, the configuration or the workspace is not usable
  3    the store is not usable: in use, full, damaged, or without that session
       (what is given of a damaged session lacks what is lost; standard error
       says so)
  4    stopped by a guard, a budget or a time limit
  5    the session waits for the answer to a question, and is left to the
       program whose tool asks
  130  interrupted

Start with `greenroom demo`: it needs no key and no server.";

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
  greenroom run -p \"What does this project do?\"
  git diff | greenroom run -p \"Review this.\" --no-tools
  greenroom run -p \"Fix the failing test.\" --allow-write --allow-shell
  greenroom run -p \"Go on.\" -c                the newest session of this folder
  greenroom run -p \"Go on.\" --session fix-the-test
  greenroom run -p \"What is wrong?\" --image a.png --max-cost 0.10 --timeout 60
  greenroom run -p \"Which files are dead?\" --output-schema '{\"type\":\"array\"}'
  greenroom run -p \"Look around.\" --simulate --json | jq .type

The answer goes to standard output, as it comes at a terminal and whole to a pipe; progress goes to standard error, \
only where that is a terminal.
With --json each line is one event with `type`, `seq` and `session_id`; the last line is `run_end`, or \
`error` with `class`, `status`, `message`, `limit`, `requested` and `retryable`. With --output-schema `run_end` has the \
answer's `value`.
The first Ctrl-C ends the run and keeps what had come; the second ends the process at once.

Exit codes: 0 done, 1 failed, 2 usage or configuration, 3 store, 4 stopped by a guard, a budget or a time limit, \
5 waiting for an answer, 130 interrupted";

pub(super) const CHAT_EXAMPLES: &str = "\
Examples:
  greenroom chat                          OpenAI, with OPENAI_API_KEY
  greenroom chat --base-url http://localhost:11434/v1 --model qwen3
  greenroom chat --session umbrella       goes on with a session, or begins it
  greenroom chat --simulate               no key, no server

Ctrl-C interrupts the run and keeps what had come; at the prompt Ctrl-D leaves, and so does Ctrl-C twice. `/help` lists the \
commands.";

pub(super) const MODELS_HELP: &str = "\
Examples:
  greenroom models gpt-5
  greenroom models --provider local --json | jq -r '.models[].id'

The window is the first that is known: your settings; what the server says that it takes; the model catalogue; what the \
server says that the model was made for; else an assumption. A limit that the server named when it refused a request \
lowers all but your settings. It is doubted when the server says more, and where the server says nothing after a day.";

pub(super) const PLAN_EXAMPLES: &str = "\
Examples:
  greenroom plan session.jsonl            a session file of another system
  greenroom plan demo-20260102-030405     a stored session
  greenroom plan session.jsonl --keep-recent 10000 --json
  greenroom plan session.jsonl --cut nearest --estimator char4     as others do

Nothing is changed. The exit code is 0 also when there is nothing to compact.";

pub(super) const SERVE_HELP: &str = "\
Examples:
  greenroom serve                         for programs on this machine
  greenroom serve --listen 0.0.0.0:7878 --host-name build.example

Each request must bear the token, which is made at the first start and kept in `token` in the store's directory:
  token=$(cat ~/.local/share/greenroom/token)
  curl -H \"Authorization: Bearer $token\" http://127.0.0.1:7878/sessions

There is no TLS. Ctrl-C and SIGTERM interrupt what runs, and it ends within 10 seconds.";

pub(super) const SIMULATE_EXAMPLES: &str = "\
Examples:
  greenroom simulate                      a free port; it says what it is told
  greenroom simulate --listen 127.0.0.1:8080 --say Hello --say Goodbye
  greenroom simulate --script answers.yaml

The first line on standard output is the base URL, for OPENAI_BASE_URL. A script:
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

A call beyond the script is refused with 400. Ctrl-C ends it: with exit code 1 where answers were left, a call was \
beyond the script, an expectation was not met, or a request broke a rule of the protocol; standard error says which.";

pub(super) const COMPLETIONS_HELP: &str = "\
Examples:
  dir=~/.local/share/bash-completion/completions; mkdir -p $dir
  greenroom completions bash > $dir/greenroom
  greenroom completions zsh > \"${fpath[1]}/_greenroom\"
  mkdir -p ~/.config/fish/completions
  greenroom completions fish > ~/.config/fish/completions/greenroom.fish
  source <(greenroom completions bash)    for this shell only

They hold from the next shell on. Commands, flags, stored sessions, models, providers and settings are completed; the \
script asks greenroom while you type, so it need not be made anew.";

pub(super) const STORE_HELP: &str = "\
A session that lost entries with a damaged disk takes no prompts until its loss is accepted. Before that, put a backup \
of the whole store in its place, or keep what is left: `greenroom export ID`. Where the lost entries belong to the \
newest part of the conversation, accepting the loss also gives up what came after them.";

pub(super) const SESSIONS_EXAMPLES: &str = "\
Examples:
  greenroom sessions --here               those that were begun in this folder
  greenroom sessions --unfinished         what was left undone
  greenroom sessions --label tenant=x --json | jq -r '.[].id'

Nothing is started or changed by looking, also while a program has the store open.";

pub(super) const SHOW_EXAMPLES: &str = "\
Examples:
  greenroom show demo-2026                the beginning of an id is enough
  greenroom show demo-2026 --json | jq -r '.conversation[].text'";

pub(super) const TREE_EXAMPLES: &str = "\
Examples:
  greenroom tree demo-2026
  greenroom tree demo-2026 --json | jq";

pub(super) const RESUME_EXAMPLES: &str = "\
Examples:
  greenroom resume                        the newest session of this folder
  greenroom resume fix-the                the one whose id begins like that";

pub(super) const COMPACT_EXAMPLES: &str = "\
Examples:
  greenroom compact fix-the-test
  greenroom compact fix-the-test --focus \"the failing test\" --keep-recent 8000

Nothing is lost: the log keeps what was replaced, and `greenroom show` prints it. The exit code is 0 also where there is \
nothing to compact. Ctrl-C leaves the conversation as it was.";

pub(super) const IMPORT_EXAMPLES: &str = "\
Examples:
  greenroom import session.jsonl
  greenroom import ~/.pi/agent/sessions/*/*.jsonl --json | jq -r .session_id

A file becomes one session, all of it or nothing; a session that is there is never changed. Where a file cannot be \
taken, the others are, and the exit code says so.";

pub(super) const EXPORT_EXAMPLES: &str = "\
Examples:
  greenroom export fix-the-test > fix-the-test.jsonl
  greenroom export fix-the-test --output fix-the-test.jsonl";

pub(super) const QUESTIONS_EXAMPLES: &str = "\
Examples:
  greenroom questions
  greenroom questions --json | jq -r '\"\\(.session_id) \\(.question_id) \\(.text)\"'

They are listed also while the program that asks has the store open.";

pub(super) const ANSWER_EXAMPLES: &str = "\
Examples:
  greenroom answer order-7 12 yes
  greenroom answer order-7 12 '[\"tests\",\"docs\"]'         several choices
  greenroom answer order-7 12 '{\"seats\":2}' --by ada     a form

A question is answered once. Where a host or a program has the store open, it takes the answer.";

pub(super) const DELETE_EXAMPLES: &str = "\
Examples:
  greenroom delete demo-20260102-030405
  greenroom delete demo-2026              the beginning of an id is enough
  greenroom delete demo-20260102-030405 --json

It cannot be undone: `greenroom export` keeps a copy. Nothing is asked where ID is whole, or a beginning of at least 4 \
characters; a shorter one is asked about at a terminal, and needs --yes elsewhere.";

pub(super) const STORE_CHECK_EXAMPLES: &str = "\
Examples:
  greenroom store check
  greenroom store check --json | jq -r '.sessions[].id'";

pub(super) const ACCEPT_LOSS_EXAMPLES: &str = "\
Examples:
  greenroom store accept-loss fix-the-test
  greenroom store accept-loss --segment 7";

pub(super) const RPC_EXAMPLES: &str = "\
Examples:
  greenroom rpc --simulate
  echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}' | greenroom rpc

docs/protocol.md has the methods, docs/schema/operations.json their schemas. When the input ends, what runs is \
interrupted and the process ends.";

pub(super) const CONFIG_EXAMPLES: &str = "\
Examples:
  greenroom config                        what holds here, and from where
  greenroom config get compaction.threshold
  greenroom config set compaction.threshold 0.7
  greenroom config set --project model gpt-5.5-mini
  mkdir -p ~/.config/greenroom
  greenroom config --default > ~/.config/greenroom/greenroom.yaml";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:
  greenroom top
  greenroom top --sort cost
  greenroom top --json | jq -r '.[] | select(.status == \"working\") | .id'

Enter looks at one session closely: what it says and does, as it happens. From there, and from the list, a session can be \
aborted and compacted; that is asked first. What is no terminal gets one table.";

pub(super) const HOST_EXAMPLES: &str = "\
Examples:
  greenroom host                          while it is used, and a minute longer
  greenroom host --idle 3600              while it is used, and an hour longer
  greenroom host --stop                   end this store's host, if it is idle
  greenroom host --stop --force           end it in any case

The host is the process that has the store open. Other commands reach it by a socket beside the store, which only you \
can use; `run`, `chat` and `resume` start one where there is none. Its log is host.log in the store's directory.";
