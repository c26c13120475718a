"""The ASGI application: finds the route, identifies the caller, answers, and writes errors as problems."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import secrets
import time
from collections.abc import Mapping

from qo.core.errors import QoError
from qo.metrics.registry import Registry
from qo.server.context import ServerContext
from qo.server.error_format import error_format_of
from qo.server.protocol import CYCLE, Answering
from qo.server.request import Answer, ClientGone, Event, Receive, Request, Response, Send, Streaming
from qo.server.router import Route, Router, WrongMethod

log = logging.getLogger("qo.server")

PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, idempotency-key, x-request-id"),
    (b"access-control-max-age", b"600"),
)
STATUS_TEXTS = {status: str(status) for status in range(100, 600)}
_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class App:
    """One callable for one server process."""

    def __init__(
        self, context: ServerContext, router: Router, registry: Registry, *, log_requests: bool = False
    ) -> None:
        self._context = context
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
        answer: Answer | None
        try:
            if scope["method"] == "OPTIONS" and (allowed := self._preflight(headers)) is not None:
                answer = allowed
            else:
                route, request.path = self._router.find(scope["method"], scope["raw_path"])
                answer = await self._answer(route, request)
        except ClientGone:
            answer = None
        except WrongMethod as wrong:
            answer = error_format_of(scope["raw_path"]).wrong_method(wrong, id)
        except QoError as error:
            answer = error_format_of(scope["raw_path"]).error(error, id)
        except Exception:
            log.exception("a request failed", extra={"request_id": id, "route": route.name if route else ""})
            answer = error_format_of(scope["raw_path"]).failure(id)
        status = await self._send(answer, scope, receive, send, request)
        self._note(scope["method"], route, status, time.perf_counter() - began, request)

    def _preflight(self, headers: Mapping[bytes, bytes]) -> Response | None:
        """A browser asks whether a page of another origin may call; answered only where some may."""
        origin = headers.get(b"origin")
        if origin is None or not self._context.authenticator.admits(origin):
            return None
        return Response(204, headers=PREFLIGHT)

    async def _answer(self, route: Route, request: Request) -> Answer:
        if route.scopes is not None:
            request.caller = await self._context.authenticator.identify(request.headers)
            if not route.decides:
                queue = request.path.get("queue")
                request.allow(route.scopes, None if queue is None else [queue])
        if route.method != "GET":
            limits = self._context.limits
            await request.read_body(limits.queen_body_bytes if route.large else limits.body_bytes)
        return await route.handle(self._context, request)

    async def _send(self, answer: Answer | None, scope: Event, receive: Receive, send: Send, request: Request) -> int:
        """Answers the status that was sent; of a client that has gone, 499."""
        if answer is None:
            return 499
        headers = [(b"x-request-id", request.id.encode())]
        origin = request.headers.get(b"origin")
        if origin is not None and self._context.authenticator.admits(origin):
            headers += ((b"access-control-allow-origin", origin), (b"vary", b"origin"))
        if isinstance(answer, Streaming):
            with contextlib.suppress(ClientGone):
                await answer.run(receive, send, headers)
            return 200
        status, body, content, more = answer
        headers += more
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
