"""The ASGI application: finds the route, passes the gate, answers, and tells errors as problems."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import time
from http import HTTPStatus

import msgspec

from qo.core.errors import QoError, Throttled, Unauthenticated, Unavailable
from qo.metrics.registry import Registry
from qo.server.house import House
from qo.server.protocol import CYCLE, Answering
from qo.server.request import Answer, ClientGone, Event, Receive, Request, Response, Send, Streaming
from qo.server.router import Route, Router, WrongMethod
from qo.wire.problems import CONTENT, TYPE_PREFIX, Problem, problem_of

log = logging.getLogger("qo.server")

PROBLEM = CONTENT.encode()
RETRY_AFTER_SECONDS = 1
STATUS_TEXTS = {status: str(status) for status in range(100, 600)}
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_encode = msgspec.json.Encoder().encode


class App:
    """One callable for one server process."""

    def __init__(self, house: House, router: Router, registry: Registry, *, log_requests: bool = False) -> None:
        self._house = house
        self._router = router
        self._log_requests = log_requests
        self._numbers = itertools.count(1)
        self._prefix = secrets.token_hex(4)
        self._answering = Answering()
        self._requests = registry.counter(
            "qo_http_requests_total", "Requests, by route and status.", ["route", "method", "status"]
        )
        self._seconds = registry.histogram("qo_http_request_seconds", "From request to answer.", ["route"])

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id")
        id = given.decode() if given and _ID.fullmatch(given) else f"{self._prefix}-{next(self._numbers):x}"
        request = Request(scope, receive, headers, id)
        route: Route | None = None
        try:
            route, request.path = self._router.find(scope["method"], scope["raw_path"])
            answer = await self._answer(route, request)
        except ClientGone:
            answer = None
        except WrongMethod as wrong:
            answer = _wrong_method(wrong, id)
        except QoError as error:
            answer = _problem(error, id)
        except Exception:
            log.exception("a request failed", extra={"request_id": id, "route": route.name if route else ""})
            answer = _failure(id)
        status = await self._send(answer, scope, receive, send, request)
        self._note(scope["method"], route, status, time.perf_counter() - began, request)

    async def _answer(self, route: Route, request: Request) -> Answer:
        if route.scopes is not None:
            request.caller = await self._house.gate.identify(request.headers)
            if not route.decides:
                queue = request.path.get("queue")
                request.allow(route.scopes, None if queue is None else [queue])
        if route.method != "GET":
            await request.read_body(self._house.limits.body_bytes)
        return await route.handle(self._house, request)

    async def _send(self, answer: Answer | None, scope: Event, receive: Receive, send: Send, request: Request) -> int:
        """Answers the status that was sent; of a client that has gone, 499."""
        if answer is None:
            return 499
        own = (b"x-request-id", request.id.encode())
        if isinstance(answer, Streaming):
            with contextlib.suppress(ClientGone):
                await answer.run(receive, send, [own])
            return 200
        status, body, content, more = answer
        headers = [own, *more]
        if status != 204:
            headers += ((b"content-type", content), (b"content-length", b"%d" % len(body)))
        cycle = scope.get(CYCLE)
        if cycle is not None and not cycle.flow.write_paused:
            if not cycle.disconnected:
                self._answering.answer(cycle, status, headers, body)
            return status
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        return status

    def _note(self, method: str, route: Route | None, status: int, seconds: float, request: Request) -> None:
        name = "none" if route is None else route.name
        self._requests.add(1, name, method if route is not None else "", STATUS_TEXTS[status])
        self._seconds.observe(seconds, name)
        if self._log_requests:
            told = {"request_id": request.id, "method": method, "route": name, "status": status}
            log.info("request", extra={**told, "ms": round(seconds * 1000, 2), "client": request.client})


def _problem(error: QoError, id: str) -> Response:
    problem = problem_of(error, id)
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Unavailable):
        seconds = error.retry_after_seconds if isinstance(error, Throttled) else RETRY_AFTER_SECONDS
        headers.append((b"retry-after", b"%d" % max(1, round(seconds))))
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if problem.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        headers.append((b"connection", b"close"))  # the rest of the body is not waited for
    return Response(problem.status, _encode(problem), PROBLEM, tuple(headers))


def _wrong_method(wrong: WrongMethod, id: str) -> Response:
    status = HTTPStatus.METHOD_NOT_ALLOWED
    problem = Problem(
        type=TYPE_PREFIX + "wrong-method", title=status.phrase, status=status, detail=str(wrong), request_id=id
    )
    return Response(status, _encode(problem), PROBLEM, ((b"allow", wrong.allowed.encode()),))


def _failure(id: str) -> Response:
    status = HTTPStatus.INTERNAL_SERVER_ERROR
    detail = "the server met an error of its own; its log has this request's id"
    problem = Problem(type=TYPE_PREFIX + "failure", title=status.phrase, status=status, detail=detail, request_id=id)
    return Response(status, _encode(problem), PROBLEM)
