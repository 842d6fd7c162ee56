"""The client, and its defaults from the environment.

Invariants: the token of this machine's server is sent to no other machine.
"""

from __future__ import annotations

import os
import pathlib
import ssl
import typing as t
from urllib.parse import urlsplit

from . import types
from .errors import Busy, ConnectionFailed
from .operations import Operations
from .transport import Patience, Transport

URL = "http://127.0.0.1:7878"


class Client(Operations):
    """A client of `greenroom serve`. It can be used by several threads.

    Args:
        url: The server's address; without it that of `GREENROOM_URL`, or http://127.0.0.1:7878.
        token: The token; without it that of `GREENROOM_TOKEN`. For a server on this machine, the file `token` in the store's
            directory is read otherwise.
        timeout: How long to wait for an answer, in seconds. Streams and prompts have no such limit: a lost connection is
            noticed within 30 seconds.
        retries: How often a request is sent again if that is safe: after a lost connection, and after 429 and 503. A stream
            that has begun reconnects without a limit.
        context: The settings of TLS.
    """

    def __init__(
        self,
        url: t.Optional[str] = None,
        token: t.Optional[str] = None,
        *,
        timeout: float = 300.0,
        retries: int = 5,
        context: t.Optional[ssl.SSLContext] = None,
    ) -> None:
        url = url or os.environ.get("GREENROOM_URL") or URL
        token = token or os.environ.get("GREENROOM_TOKEN") or _token_of_this_machine(url)
        super().__init__(Transport(url, token, timeout, retries, context))

    def consume(
        self,
        name: str,
        *,
        labels: t.Optional[t.Dict[str, str]] = None,
        max: int = 100,
        commit: t.Optional[str] = None,
    ) -> t.Iterator[types.ConsumerEvents]:
        """Reads every durable event at least once, in batches, without an end.

        A batch is committed when the next one is asked for. So if the loop's body raises, or the program dies, the batch
        comes again. It also comes again after a `break`.

        Args:
            name: The consumer's name, under which the server stores how far it has come.
            labels: Only sessions with these labels, and the sub-agents below them.
            max: The most events of a batch, 1 to 1,000.
            commit: For exactly once: the `position` that was stored with the results of the last batch.
        """
        patience = Patience(self._transport.retries)
        wait_ms = int(min(20.0, self._transport.timeout / 2) * 1000)
        while True:
            try:
                batch = self.consumer.read(name, labels=labels, commit=commit, max=max, wait_ms=wait_ms)
            except (ConnectionFailed, Busy) as error:
                patience.wait(error)
                continue
            patience.succeeded(and_never_gives_up=True)
            commit = batch.get("position")
            if batch["events"]:
                yield batch

    def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _token_of_this_machine(url: str) -> t.Optional[str]:
    if urlsplit(url).hostname not in ("127.0.0.1", "::1", "localhost"):
        return None
    try:
        return (_data_dir() / "token").read_text().strip()
    except (OSError, RuntimeError):
        return None


def _data_dir() -> pathlib.Path:
    named = os.environ.get("GREENROOM_DATA_DIR")
    if named:
        return pathlib.Path(named)
    data = os.environ.get("XDG_DATA_HOME", "")
    return (pathlib.Path(data) if os.path.isabs(data) else pathlib.Path.home() / ".local" / "share") / "greenroom"
