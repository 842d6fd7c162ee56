"""A client of Greenroom's HTTP API (`greenroom serve`), with nothing but the standard library."""

from . import types
from .client import Client
from .errors import (
    ApiError,
    Busy,
    Conflict,
    ConnectionFailed,
    Forbidden,
    GreenroomError,
    InvalidRequest,
    ModelFailed,
    NotFound,
    TimedOut,
    Unauthorized,
)
from .streams import EventStream, Gap, StreamItem, StreamProblem, WorkStream

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "Busy",
    "Client",
    "Conflict",
    "ConnectionFailed",
    "EventStream",
    "Forbidden",
    "Gap",
    "GreenroomError",
    "InvalidRequest",
    "ModelFailed",
    "NotFound",
    "StreamItem",
    "StreamProblem",
    "TimedOut",
    "Unauthorized",
    "WorkStream",
    "types",
]
