"""Streams of events: of sessions, and of work until its outcome.

Invariants: a stream that was lost continues after the last event that it returned, so no durable event is missing or there
twice. Work is sent again only with an idempotency key.
"""

from __future__ import annotations

import http.client
import json
import socket
import typing as t

from . import types
from .errors import ApiError, Busy, ConnectionFailed, GreenroomError
from .transport import Params, Patience, Transport, with_key

Outcome = t.TypeVar("Outcome")


class Gap(t.TypedDict):
    """Transient events were left out, because they were read too slowly. Durable ones never are."""

    type: t.Literal["gap"]


class StreamProblem(t.TypedDict):
    """A session could not be read; the stream continues with the others."""

    type: t.Literal["problem"]
    problem: types.HttpProblem


StreamItem = t.Union[types.Event, Gap, StreamProblem]


class _Message(t.NamedTuple):
    name: str
    data: str
    id: t.Optional[str]


def _messages(answer: http.client.HTTPResponse) -> t.Iterator[_Message]:
    """The messages of a stream of server-sent events. One that is cut off is left out."""
    name: str = ""
    data: t.List[str] = []
    last: t.Optional[str] = None
    while True:
        try:
            line = answer.readline()
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ConnectionFailed(error, was_sent=True) from error
        if not line:
            return
        field, _, value = line.decode().rstrip("\r\n").partition(":")
        value = value[1:] if value.startswith(" ") else value
        if line in (b"\n", b"\r\n"):
            if data or last is not None:
                yield _Message(name, "\n".join(data), last)
            name, data, last = "", [], None
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field == "id":
            last = value


class _Stream:
    """An iterator over what a stream has, which can be closed."""

    def __init__(self, transport: Transport, target: str) -> None:
        self._transport = transport
        self._target = target
        self._connection: t.Optional[http.client.HTTPConnection] = None
        self._is_closed = False
        self._items = self._read()
        self.position: t.Optional[str] = None
        """The position after the last event that was returned, at which another stream can continue (`after`)."""

    def _followed(self) -> t.Iterator[StreamItem]:
        raise NotImplementedError

    def _open(self, verb: str, query: Params, body: t.Optional[Params]) -> t.Iterator[_Message]:
        self._disconnect()
        self._connection, answer = self._transport.stream(verb, self._target, query, body, self.position)
        return _messages(answer)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Ends the stream, also while another thread reads it. What the server does for it continues."""
        self._is_closed = True
        connection = self._connection
        try:
            if connection is not None and connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self._items.close()
        except ValueError:
            # Another thread is in it, and notices the end.
            pass

    def _read(self) -> t.Generator[StreamItem, None, None]:
        try:
            yield from self._followed()
        finally:
            self._disconnect()

    def __iter__(self) -> t.Iterator[StreamItem]:
        return self

    def __next__(self) -> StreamItem:
        return next(self._items)

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Self = t.TypeVar("_Self", bound=_Stream)


class EventStream(_Stream):
    """The events of sessions, without an end. It reconnects by itself, and continues behind its last event."""

    def __init__(self, transport: Transport, target: str, query: Params) -> None:
        super().__init__(transport, target)
        self._query = {name: value for name, value in query.items() if name != "after"}
        self.position = query.get("after")

    def _followed(self) -> t.Iterator[StreamItem]:
        patience = Patience(self._transport.retries)
        while not self._is_closed:
            lost: t.Optional[GreenroomError] = None
            problem: t.Optional[types.HttpProblem] = None
            try:
                for message in self._open("GET", self._query, None):
                    patience.succeeded(and_never_gives_up=True)
                    problem = json.loads(message.data) if message.name == "problem" else None
                    self.position = message.id if message.id is not None else self.position
                    if problem is not None:
                        yield {"type": "problem", "problem": problem}
                    elif message.data:
                        yield json.loads(message.data)
            except (ConnectionFailed, Busy) as error:
                lost = error
            if self._is_closed:
                return
            # The server ends a stream with a problem if it cannot go on.
            if problem is not None:
                raise ApiError.of(problem)
            patience.wait(lost)


class WorkStream(_Stream, t.Generic[Outcome]):
    """The events of a session from the acceptance of work until its outcome.

    With an idempotency key, which prompts always have, a lost stream is taken up again, also after a restart of the server.
    """

    def __init__(self, transport: Transport, target: str, body: Params, takes_key: bool = False) -> None:
        super().__init__(transport, target)
        self._body = with_key(body) if takes_key else body
        self._has_key = takes_key
        self._outcome: t.List[Outcome] = []
        self.accepted: t.Optional[types.Accepted] = None
        """What was accepted, once it was."""

    def outcome(self) -> Outcome:
        """Reads to the end, and returns the outcome.

        Raises:
            ApiError: The work failed.
        """
        for _ in self:
            pass
        if not self._outcome:
            raise GreenroomError("the stream was closed before the outcome")
        return self._outcome[0]

    def _followed(self) -> t.Iterator[StreamItem]:
        patience = Patience(self._transport.retries)
        while not self._is_closed:
            try:
                for message in self._open("POST", {}, self._body):
                    patience.succeeded()
                    self.position = message.id if message.id is not None else self.position
                    if message.name == "problem":
                        raise ApiError.of(json.loads(message.data))
                    if message.name == "result":
                        self._outcome.append(json.loads(message.data))
                        return
                    if message.name == "accepted":
                        self.accepted = json.loads(message.data)
                    elif message.data:
                        yield json.loads(message.data)
                if not self._is_closed:
                    raise ConnectionFailed("the stream ended before the outcome", was_sent=True)
            except (ConnectionFailed, Busy) as error:
                if self._is_closed:
                    return
                if not self._has_key and (isinstance(error, Busy) or error.was_sent):
                    raise
                patience.wait(error)
