"""Servers for the tests: `greenroom serve --simulate`, and one that answers what a test says."""

from __future__ import annotations

import http.server
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import typing as t

ROOT = pathlib.Path(__file__).resolve().parents[3]
BINARY = os.environ.get("GREENROOM_BINARY") or str(ROOT / "target" / "debug" / "greenroom")


class Server:
    """A server with a store and a workspace of its own, which can be killed and started again at the same address."""

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._dir = tempfile.TemporaryDirectory(prefix="greenroom-client-")
        self.data = os.path.join(self._dir.name, "data")
        self.workspace = os.path.join(self._dir.name, "workspace")
        os.mkdir(self.workspace)
        for number in range(3):
            pathlib.Path(self.workspace, f"file{number}.txt").write_text(f"line {number}\n" * 20)
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        known = ("PATH", "HOME", "TMPDIR")
        self._process = subprocess.Popen(
            [BINARY, "serve", "--simulate", "--data-dir", self.data, "--listen", self.address, *self._flags],
            cwd=self.workspace,
            env={name: os.environ[name] for name in known if name in os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"serves http://(\S+);", line)
            if found:
                self.address = found[1]
                return
        raise AssertionError("the server did not start")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        self._process.send_signal(how)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def close(self) -> None:
        self.stop(signal.SIGKILL)
        self._dir.cleanup()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def token(self) -> str:
        return pathlib.Path(self.data, "token").read_text()


class Scripted:
    """A server that gives the answers of a test, in their order: status, headers and body, or `None` to hang up."""

    def __init__(self, answers: t.List[t.Optional[t.Tuple[int, t.Dict[str, str], str]]]) -> None:
        self.seen: t.List[t.Tuple[str, str, str]] = []
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                scripted.seen.append((self.command, self.path, body))
                answer = answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, headers, text = answer
                self.send_response(status)
                for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
