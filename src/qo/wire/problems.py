"""Errors on the wire: one problem (RFC 9457) for each leaf of the tree, and back."""

from __future__ import annotations

from http import HTTPStatus
from typing import NamedTuple

import msgspec

from qo.core import errors
from qo.core.errors import Invalid, QoError, RolledBack, Throttled

CONTENT = "application/problem+json"
TYPE_PREFIX = "urn:qo:"


class Kind(NamedTuple):
    """How an error is told: its name on the wire and the status that goes with it."""

    error: type[QoError]
    name: str
    status: HTTPStatus


KINDS = (
    # An error is told as the first of these that it is.
    Kind(errors.TooLarge, "too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    Kind(errors.Invalid, "invalid", HTTPStatus.BAD_REQUEST),
    Kind(errors.LeaseLost, "lease-lost", HTTPStatus.CONFLICT),
    Kind(errors.RolledBack, "rolled-back", HTTPStatus.CONFLICT),
    Kind(errors.AlreadyExists, "already-exists", HTTPStatus.CONFLICT),
    Kind(errors.Conflict, "conflict", HTTPStatus.CONFLICT),
    Kind(errors.NotFound, "not-found", HTTPStatus.NOT_FOUND),
    Kind(errors.Unauthenticated, "unauthenticated", HTTPStatus.UNAUTHORIZED),
    Kind(errors.QueueFull, "queue-full", HTTPStatus.FORBIDDEN),
    Kind(errors.Forbidden, "forbidden", HTTPStatus.FORBIDDEN),
    Kind(errors.Incompatible, "incompatible", HTTPStatus.SERVICE_UNAVAILABLE),
    Kind(errors.JobFailed, "job-failed", HTTPStatus.CONFLICT),
    Kind(errors.JobCanceled, "job-canceled", HTTPStatus.CONFLICT),
    Kind(errors.TimedOut, "timed-out", HTTPStatus.REQUEST_TIMEOUT),
    Kind(errors.StoreFull, "store-full", HTTPStatus.INSUFFICIENT_STORAGE),
    Kind(errors.Throttled, "throttled", HTTPStatus.TOO_MANY_REQUESTS),
    Kind(errors.Closed, "closed", HTTPStatus.SERVICE_UNAVAILABLE),
    Kind(errors.Unavailable, "unavailable", HTTPStatus.SERVICE_UNAVAILABLE),
)
_OF_NAME = {TYPE_PREFIX + kind.name: kind for kind in KINDS}


class Problem(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What went wrong. `field` is what is wrong in the request, `allowed` what it could be; `item` and
    `obstacle` are the part of a unit that could not be done, and of which sort it is.
    """

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    allowed: list[str] | None = None
    item: int | None = None
    obstacle: str | None = None
    retry_after_seconds: float | None = None
    request_id: str | None = None


def kind_of(error: QoError) -> Kind:
    return next(kind for kind in KINDS if isinstance(error, kind.error))


def problem_of(error: QoError, request_id: str | None = None) -> Problem:
    kind = kind_of(error)
    return Problem(
        type=TYPE_PREFIX + kind.name,
        title=kind.status.phrase,
        status=kind.status.value,
        detail=_sayable(str(error)),
        field=_sayable(error.field) if isinstance(error, Invalid) else None,
        allowed=error.allowed or None if isinstance(error, Invalid) else None,
        item=error.item if isinstance(error, RolledBack) else None,
        obstacle=error.obstacle if isinstance(error, RolledBack) else None,
        retry_after_seconds=error.retry_after_seconds if isinstance(error, Throttled) else None,
        request_id=request_id,
    )


def _sayable(text: str) -> str:
    """Text without lone surrogates, which no encoding can say."""
    return text.encode(errors="replace").decode()


def error_of(problem: Problem) -> QoError:
    """The error that a problem tells of."""
    kind = _OF_NAME.get(problem.type)
    if kind is None:
        return errors.Unavailable(f"the server answered {problem.status}: {problem.detail}")
    if issubclass(kind.error, Invalid):
        field = problem.field or "request"
        return kind.error(field, problem.detail.removeprefix(f"{field}: "), problem.allowed or ())
    if issubclass(kind.error, RolledBack):
        return RolledBack(problem.detail, item=problem.item, obstacle=problem.obstacle)
    if issubclass(kind.error, Throttled):
        return Throttled(problem.detail, retry_after_seconds=problem.retry_after_seconds or 1)
    return kind.error(problem.detail)
