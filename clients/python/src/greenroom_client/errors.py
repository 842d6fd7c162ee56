"""The errors of the client.

Invariants: everything that the client raises on purpose is a `GreenroomError`; an answer of the server with an error status is
an `ApiError`, of the class that belongs to its status.
"""

from __future__ import annotations

import typing as t

from . import types


class GreenroomError(Exception):
    """Every error of the client."""


class ConnectionFailed(GreenroomError):
    """The server cannot be reached, the connection was lost, or no answer came in time."""

    def __init__(self, reason: object, *, was_sent: bool) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.was_sent = was_sent
        """Whether the server may have received the request."""


class ApiError(GreenroomError):
    """The server refused the request, or its work failed."""

    def __init__(self, problem: types.HttpProblem, retry_after: t.Optional[float] = None) -> None:
        super().__init__(f"{problem['status']} {problem['kind']}: {problem['detail']}")
        self.problem = problem
        """The problem as the server described it (RFC 9457)."""
        self.status: int = problem["status"]
        """The HTTP status."""
        self.kind: types.ProblemKind = problem["kind"]
        """The class of the problem, for programs."""
        self.detail: str = problem["detail"]
        """A description and, if known, the remedy."""
        self.retryable: bool = problem["retryable"]
        """Whether the same request may succeed later, unchanged."""
        self.failure: t.Optional[types.Failure] = problem.get("failure")
        """The model's failure, if it is one."""
        self.retry_after: t.Optional[float] = retry_after
        """When to try again, in seconds."""

    @staticmethod
    def of(problem: types.HttpProblem, retry_after: t.Optional[float] = None) -> ApiError:
        """The error of the class that belongs to the status."""
        return _CLASSES.get(problem["status"], ApiError)(problem, retry_after)


class InvalidRequest(ApiError):
    """400: the request is invalid as it is."""


class Unauthorized(ApiError):
    """401: there is no valid token."""


class Forbidden(ApiError):
    """403: the token does not permit the request."""


class NotFound(ApiError):
    """404: there is no such session, question or route."""


class Conflict(ApiError):
    """409: not possible in the session's present state."""


class Busy(ApiError):
    """429 and 503: busy, stopping, or interrupted by a stop."""


class ModelFailed(ApiError):
    """502: the model call failed, and recovery did not help."""


class TimedOut(ApiError):
    """504: the reply did not arrive within `timeout_s`."""


_CLASSES: t.Dict[int, t.Type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: Busy,
    502: ModelFailed,
    503: Busy,
    504: TimedOut,
}
