"""How errors are told: as problems (RFC 9457) on our own wire, as Queen's clients read them on theirs."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Protocol

import msgspec

from qo.core.errors import QoError, QueueFull, Throttled, Unauthenticated, Unavailable
from qo.server.request import JSON, Response
from qo.server.router import NoRoute, WrongMethod
from qo.wire.problems import CONTENT, TYPE_PREFIX, Problem, kind_of, problem_of

RETRY_AFTER_SECONDS = 1
QUEEN_PREFIX = b"/api/"
OWN_ERROR = "the server met an error of its own; its log has this request's id"
_encode = msgspec.json.Encoder().encode


class ErrorFormat(Protocol):
    """The words of one wire."""

    def error(self, error: QoError, id: str) -> Response: ...

    def wrong_method(self, wrong: WrongMethod, id: str) -> Response: ...

    def failure(self, id: str) -> Response: ...


class Problems:
    """Our own wire's."""

    def error(self, error: QoError, id: str) -> Response:
        problem = problem_of(error, id)
        return _response(problem.status, problem, CONTENT.encode(), headers_of(error, problem.status))

    def wrong_method(self, wrong: WrongMethod, id: str) -> Response:
        problem = _own(HTTPStatus.METHOD_NOT_ALLOWED, "wrong-method", str(wrong), id)
        return _response(problem.status, problem, CONTENT.encode(), ((b"allow", wrong.allowed.encode()),))

    def failure(self, id: str) -> Response:
        problem = _own(HTTPStatus.INTERNAL_SERVER_ERROR, "failure", OWN_ERROR, id)
        return _response(problem.status, problem, CONTENT.encode(), ())


class QueenErrors:
    """Queen's: `{"error", "code"}`."""

    def error(self, error: QoError, id: str) -> Response:  # noqa: ARG002 - the id is in a header
        status = kind_of(error).status
        if isinstance(error, NoRoute):
            detail = "Queen has no such path, or qo does not serve it"
            body = {"error": "no_such_route", "code": "no_such_route", "detail": detail}
        else:
            code = "queue_full" if isinstance(error, QueueFull) else kind_of(error).name.replace("-", "_")
            body = {"error": str(error), "code": code}
        return _response(status, body, JSON, headers_of(error, status))

    def wrong_method(self, wrong: WrongMethod, id: str) -> Response:  # noqa: ARG002
        body = {"error": str(wrong), "code": "wrong_method"}
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, body, JSON, ((b"allow", wrong.allowed.encode()),))

    def failure(self, id: str) -> Response:  # noqa: ARG002
        return _response(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": OWN_ERROR, "code": "failure"}, JSON, ())


def headers_of(error: QoError, status: int) -> tuple[tuple[bytes, bytes], ...]:
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Unavailable):
        seconds = error.retry_after_seconds if isinstance(error, Throttled) else RETRY_AFTER_SECONDS
        headers.append((b"retry-after", b"%d" % max(1, round(seconds))))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers.append((b"connection", b"close"))  # the rest of the body is not waited for
    return tuple(headers)


def _own(status: HTTPStatus, name: str, detail: str, id: str) -> Problem:
    return Problem(type=TYPE_PREFIX + name, title=status.phrase, status=status.value, detail=detail, request_id=id)


def _response(status: int, body: Any, content: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> Response:
    return Response(int(status), _encode(body), content, headers)


OWN, QUEEN = Problems(), QueenErrors()


def error_format_of(raw_path: bytes) -> ErrorFormat:
    return QUEEN if raw_path.startswith(QUEEN_PREFIX) else OWN
