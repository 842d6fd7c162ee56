"""Requests over HTTP: connections, retries, errors.

Invariants: a request that the server may have received is sent again only if that is safe (`GET`, or with an idempotency key).
A connection that lay idle is used again only if the server has not closed it.
"""

from __future__ import annotations

import http.client
import json
import random
import select
import ssl
import threading
import time
import typing as t
import uuid
from urllib.parse import quote, urlencode, urlsplit

from .errors import ApiError, Busy, ConnectionFailed

SILENCE_S = 30.0
"""A stream that sends nothing for so long is lost: the server sends a comment every 10 seconds."""
IDLE_S = 15.0
"""How long an idle connection is kept. The server closes it after 30 seconds."""
WAIT_MAX_S = 60.0
"""The longest `Retry-After` that is waited for."""

Params = t.Mapping[str, t.Any]


def given(params: Params) -> t.Dict[str, t.Any]:
    """The parameters that have a value."""
    return {name: value for name, value in params.items() if value is not None}


def path(template: str, *values: str) -> str:
    """A path with these values in place of the names in braces."""
    for value in values:
        before, _, after = template.partition("{")
        template = before + quote(value, safe="") + after.partition("}")[2]
    return template


def _in_query(name: str, value: t.Any) -> t.List[t.Tuple[str, str]]:
    if isinstance(value, dict):
        # Labels, the only dictionaries in queries.
        return [("label", f"{label}:{text}") for label, text in value.items()]
    return [(name, str(value).lower() if isinstance(value, bool) else str(value))]


class Patience:
    """Decides whether a failed request is tried again, and waits before that."""

    def __init__(self, retries: int) -> None:
        self._retries: t.Optional[int] = retries
        self._failed = 0

    def succeeded(self, *, and_never_gives_up: bool = False) -> None:
        self._failed = 0
        if and_never_gives_up:
            self._retries = None

    def wait(self, error: t.Optional[Exception] = None) -> None:
        """Waits, or raises the error: after too many, or if the server asks for more patience than we have."""
        self._failed += 1
        after = error.retry_after if isinstance(error, Busy) else None
        if error is not None and (
            (self._retries is not None and self._failed > self._retries) or (after or 0.0) > WAIT_MAX_S
        ):
            raise error
        time.sleep(after if after is not None else min(10.0, 0.25 * 2 ** min(self._failed, 6)) * random.uniform(0.5, 1))


class Transport:
    """Sends requests to one server. It can be used by several threads."""

    def __init__(
        self, url: str, token: t.Optional[str], timeout: float, retries: int, context: t.Optional[ssl.SSLContext]
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a server, such as http://127.0.0.1:7878")
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._root = parts.path.rstrip("/")
        self._context = context
        self._headers = {"User-Agent": "greenroom-client-python"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self.timeout = timeout
        self.retries = retries
        self._idle: t.List[t.Tuple[http.client.HTTPConnection, float]] = []
        self._lock = threading.Lock()

    def call(
        self,
        verb: str,
        target: str,
        *,
        query: t.Optional[Params] = None,
        body: t.Optional[Params] = None,
        takes_key: bool = False,
        is_async: bool = False,
    ) -> t.Any:
        """Sends a request, and returns the answer's JSON."""
        if takes_key:
            body = with_key(body or {})
        headers = {"Prefer": "respond-async"} if is_async else {}
        answer = self._patient(verb, target, query, body, headers, takes_key)
        try:
            return json.loads(answer)
        except ValueError as error:
            # Not of the server, but of a proxy before it.
            raise ConnectionFailed(f"the answer is not JSON: {error}", was_sent=True) from error

    def text(self, verb: str, target: str, *, query: Params) -> str:
        """Sends a request, and returns the answer as text."""
        return self._patient(verb, target, query, None, {}, False).decode()

    def stream(
        self, verb: str, target: str, query: Params, body: t.Optional[Params], last_event_id: t.Optional[str]
    ) -> t.Tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Opens a stream of events on a connection of its own, without retries."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        connection = self._connected(SILENCE_S)
        try:
            return connection, self._answer(connection, verb, target, query, body, headers)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _patient(
        self,
        verb: str,
        target: str,
        query: t.Optional[Params],
        body: t.Optional[Params],
        headers: t.Dict[str, str],
        has_key: bool,
    ) -> bytes:
        is_repeatable = verb == "GET" or has_key
        patience = Patience(self.retries)
        while True:
            try:
                return self._once(verb, target, query or {}, body, headers)
            except ConnectionFailed as error:
                if error.was_sent and not is_repeatable:
                    raise
                patience.wait(error)
            except Busy as error:
                if not is_repeatable:
                    raise
                patience.wait(error)

    def _once(
        self, verb: str, target: str, query: Params, body: t.Optional[Params], headers: t.Dict[str, str]
    ) -> bytes:
        connection = self._taken() or self._connected(self.timeout)
        try:
            answer = self._answer(connection, verb, target, query, body, headers)
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionFailed(error, was_sent=True) from error
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            with self._lock:
                self._idle.append((connection, time.monotonic()))
        return content

    def _taken(self) -> t.Optional[http.client.HTTPConnection]:
        """An idle connection that is still open."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection, since = self._idle.pop()
            # What can be read from an idle connection is its end.
            is_open = connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]
            if is_open and time.monotonic() - since < IDLE_S:
                return connection
            connection.close()

    def _connected(self, timeout: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        if self._is_tls:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionFailed(error, was_sent=False) from error
        return connection

    def _answer(
        self,
        connection: http.client.HTTPConnection,
        verb: str,
        target: str,
        query: Params,
        body: t.Optional[Params],
        headers: t.Dict[str, str],
    ) -> http.client.HTTPResponse:
        pairs = [pair for name, value in given(query).items() for pair in _in_query(name, value)]
        target = self._root + target + ("?" + urlencode(pairs) if pairs else "")
        headers = {**self._headers, **headers}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.request(verb, target, content, headers)
            answer = connection.getresponse()
            if 200 <= answer.status < 300:
                return answer
            raise _refused(answer, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(error, was_sent=True) from error


def with_key(body: Params) -> t.Dict[str, t.Any]:
    """A body with an idempotency key: its own, or a new one."""
    return {"key": uuid.uuid4().hex, **body}


def _refused(answer: http.client.HTTPResponse, content: bytes) -> ApiError:
    try:
        problem = json.loads(content)
        assert isinstance(problem, dict) and "detail" in problem
    except (ValueError, AssertionError):
        # Not of the server, but of a proxy before it.
        detail = content[:200].decode(errors="replace") or answer.reason
        problem = {"type": "about:blank", "title": answer.reason, "detail": detail, "class": "other"}
    problem = {"kind": "other", "retryable": False, **problem, "status": answer.status}
    after = answer.headers.get("Retry-After", "")
    return ApiError.of(t.cast(t.Any, problem), float(after) if after.isdecimal() else None)
