"""Drives `greenroom rpc` against real servers from PyPI: llama-cpp-python with a model of random weights, and LiteLLM
in front of it. By hand; see README.md.

usage: try.py GREENROOM MODEL.gguf

The model talks nonsense, so nothing depends on what it says: a prompt must be answered, whatever the server does about its
window, and no session may ever be locked. A summary of nonsense is refused, so these sessions live from what comes after
that: pruning, the fallback, and its debt.
"""

import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

WORDS = "the harbour light turns while the keeper writes down every ship that passes before the morning "


class Failed(Exception):
    pass


def check(is_so, what):
    if not is_so:
        raise Failed(what)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server's process. `ready` is a path that answers when it can be used."""

    def __init__(self, name, command, port, ready, log, environment=None):
        self.name, self.command, self.port, self.ready, self.log = name, command, port, ready, log
        self.environment = {**os.environ, **(environment or {})}
        self.process = None

    def start(self, wait=True):
        output = open(self.log, "ab")
        self.process = subprocess.Popen(
            self.command, stdout=output, stderr=output, env=self.environment, start_new_session=True
        )
        while wait and not self.is_ready():
            check(self.process.poll() is None, f"{self.name} ended: see {self.log}")
            time.sleep(0.2)

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready}", timeout=2) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Rpc:
    """`greenroom rpc` on a store of its own."""

    def __init__(self, binary, folder, url, model, *flags, settings=""):
        config = os.path.join(folder, "greenroom.yaml")
        with open(config, "w") as file:
            file.write("model_settings: { output_tokens_max: 48 }\n" + settings)
        command = [binary, "rpc", "--config", config, "--base-url", url, "--model", model, "--no-tools", *flags]
        environment = {**os.environ, "OPENAI_API_KEY": "none", "GREENROOM_DATA_DIR": os.path.join(folder, "data")}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        self.lines = queue.Queue()
        self.events = []
        self.requests = 0
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def ask(self, method, result, seconds, **params):
        """Sends a request, and gives the notification `result` that answers it, or the error."""
        self.requests += 1
        request = {"jsonrpc": "2.0", "id": self.requests, "method": method, "params": params}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.1, end - time.monotonic()))
            except queue.Empty:
                raise Failed(f"{method}: no answer within {seconds} s") from None
            check(line is not None, "greenroom rpc ended")
            if line.get("method") == "event":
                self.events.append(line["params"])
            elif line.get("id") == self.requests and ("error" in line or result is None):
                return line.get("result", line)
            elif line.get("method") == result and line["params"].get("request_id") == self.requests:
                return line["params"]

    def prompt(self, text, seconds=180, session="s"):
        return self.ask("session/prompt", "session/prompt_result", seconds, session_id=session, text=text)

    def state(self, session="s"):
        return self.ask("agent/state", None, 20, session_id=session)

    def named(self, name):
        return [event for event in self.events if event["type"] == name]

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("greenroom rpc did not end within 20 s of its input") from None


def talk(rpc, prompts, words, session="s"):
    for number in range(prompts):
        answer = rpc.prompt(f"{number}: " + WORDS * words, session=session)
        check("error" not in answer, f"prompt {number}: {answer.get('error')}")
    return rpc.state(session)


def summary_of(rpc, state):
    ends = [end.get("outcome") for end in rpc.named("compaction_end")]
    return (
        f"{len(ends)} compactions ({', '.join(sorted(set(ends)))}), {len(rpc.named('retry'))} retries, "
        f"window {state['context']['window']} ({state['context']['window_source']})"
    )


def main(binary, model):
    binary, model = os.path.abspath(binary), os.path.abspath(model)
    folder = tempfile.mkdtemp(prefix="greenroom-servers-")
    results, servers = [], []

    def llama(window, port=None):
        port = port or free_port()
        command = [sys.executable, "-m", "llama_cpp.server", "--model", model, "--model_alias", "random"]
        command += ["--n_ctx", str(window), "--port", str(port), "--host", "127.0.0.1"]
        server = Server("llama-cpp-python", command, port, "/v1/models", os.path.join(folder, "llama.log"))
        servers.append(server)
        return server

    def attempt(name, work):
        place = os.path.join(folder, str(len(results)))
        os.mkdir(place)
        began = time.monotonic()
        try:
            told = work(place)
            results.append(True)
            print(f"ok    {name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
        except (Failed, OSError, ValueError, KeyError) as error:
            results.append(False)
            print(f"FAIL  {name}: {error!r} (files in {place})", flush=True)

    first = llama(2048)
    first.start()
    url = f"http://127.0.0.1:{first.port}/v1"

    def overflow(place, *flags, settings=""):
        rpc = Rpc(binary, place, url, "random", *flags, settings=settings)
        state = talk(rpc, 24, 4)
        check(rpc.named("compaction_end"), "nothing was compacted")
        told = summary_of(rpc, state)
        rpc.close()
        return told

    # This server answers a prompt beyond its window with a stream without an event.
    attempt("an empty stream at the window, nothing known of it", overflow)
    attempt("the same, with the window set", lambda place: overflow(place, "--window", "2048"))
    attempt("the same, with a window set twice as large", lambda place: overflow(place, "--window", "4096"))

    def one_large(place):
        rpc = Rpc(binary, place, url, "random", "--window", "2048")
        talk(rpc, 3, 2)
        answer = rpc.prompt(WORDS * 60)
        after = rpc.prompt("and now?")
        check("error" not in after, f"the session is locked: {after.get('error')}")
        told = "answered" if "error" not in answer else f"refused ({answer['error']['class']}), the next one answered"
        rpc.close()
        return told

    attempt("a prompt larger than the window", one_large)

    def comes_back(place):
        rpc = Rpc(binary, place, url, "random", "--window", "2048")
        talk(rpc, 1, 1)
        first.stop()
        threading.Timer(8, lambda: first.start(wait=False)).start()
        answer = rpc.prompt("are you there?")
        check("error" not in answer, f"{answer.get('error')}")
        classes = [event["failure"]["class"] for event in rpc.named("retry")]
        check(set(classes) <= {"loading", "timeout"} and "loading" in classes, f"{classes}")
        rpc.close()
        return f"waited for: {len(classes)} retries"

    attempt("a server that is killed and comes back", comes_back)

    port = free_port()
    config = os.path.join(folder, "litellm.yaml")
    with open(config, "w") as file:
        file.write(
            "model_list:\n  - model_name: random\n    litellm_params:\n      model: openai/random\n"
            f"      api_base: {url}\n      api_key: none\n"
            "  - model_name: limited\n    litellm_params:\n      model: openai/random\n"
            f"      api_base: {url}\n      api_key: none\n      mock_response: litellm.RateLimitError\n"
        )
    litellm = os.path.join(os.path.dirname(sys.executable), "litellm")
    proxy = Server(
        "LiteLLM", [litellm, "--config", config, "--port", str(port), "--host", "127.0.0.1"], port,
        "/health/liveliness", os.path.join(folder, "litellm.log"),
        {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"},
    )
    if os.path.exists(litellm):
        servers.append(proxy)
        proxy.start()

        def through_proxy(place):
            rpc = Rpc(binary, place, f"http://127.0.0.1:{port}/v1", "random")
            state = talk(rpc, 24, 4)
            told = summary_of(rpc, state)
            rpc.close()
            return told

        attempt("through LiteLLM, nothing known of the window", through_proxy)

        def limited(place):
            rpc = Rpc(binary, place, f"http://127.0.0.1:{port}/v1", "limited", settings="limits: { retries_max: 2 }\n")
            answer = rpc.prompt("hello")
            check(answer.get("error", {}).get("class") == "rate_limited", f"{answer}")
            rpc.close()
            return "two retries, then a typed error"

        attempt("LiteLLM's rate limit", limited)
    else:
        print("skip  LiteLLM is not installed")

    first.stop()
    second = llama(8192, first.port)
    second.start()

    def larger(place):
        rpc = Rpc(binary, place, url, "random")
        state = talk(rpc, 24, 4)
        told = summary_of(rpc, state)
        rpc.close()
        return told

    attempt("the same server with a window four times as large", larger)

    for server in servers:
        server.stop()
    print(f"{sum(results)} of {len(results)} passed; servers' logs are in {folder}")
    if all(results):
        shutil.rmtree(folder)
    return 0 if all(results) else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
