"""serve: one process that listens, or several that share a port."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import uvicorn

from qo.broker.broker import LocalBroker
from qo.core.backoff import LoopBackoff
from qo.core.errors import Invalid, Unavailable
from qo.server import logs
from qo.server.app import App
from qo.server.authenticator import Authenticator
from qo.server.context import ServerContext
from qo.server.jwts import Jwts
from qo.server.protocol import protocol_with
from qo.server.router import Router
from qo.server.routes import queen, service, v1
from qo.server.settings import ServerSettings, is_loopback
from qo.server.siblings import answering
from qo.stores.opening import capabilities_of, open_engine, without_password

log = logging.getLogger("qo.server")

BACKLOG = 4096
SIGNALS = (signal.SIGTERM, signal.SIGINT)
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 0.5, 30.0


class Server(uvicorn.Server):
    """uvicorn's server, which answers those who wait before it lets connections go, and exits 0 when told to stop."""

    def __init__(self, config: uvicorn.Config, context: ServerContext) -> None:
        super().__init__(config)
        self._context = context

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._context.stop()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {each: signal.signal(each, self.handle_exit) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


@contextlib.asynccontextmanager
async def furnished(
    settings: ServerSettings, broker: LocalBroker | None = None
) -> AsyncIterator[tuple[ServerContext, App]]:
    """The application on an open store; closes what it opened."""
    if broker is None:
        engine = await open_engine(settings.store, encryption_key=settings.encryption.key)
        broker = LocalBroker(engine, polling=settings.long_polling.strategy(), backoff=settings.long_polling.backoff())
    listen = settings.server
    local_only = is_loopback(listen.host)
    jwts = Jwts(settings.jwt) if settings.jwt.given else None
    authenticator = Authenticator(
        broker.access, broker.store_now, auth=listen.auth, local_only=local_only, origins=listen.origins, jwts=jwts
    )
    context = ServerContext(broker, settings, authenticator)
    wires = queen.ROUTES if broker.capabilities.names else []
    router = Router([*v1.ROUTES, *wires, *service.routes(v1.ROUTES)])
    show = broker.metrics
    show.gauge("qo_http_waiters", "Requests that wait.", lambda: context.all_waiting)
    show.gauge("qo_streams", "Streams that are open.", lambda: len(context.streams))
    app = App(context, router, show, log_requests=settings.log.requests)
    try:
        yield context, app
    finally:
        await broker.close()


def uvicorn_config(app: App, settings: ServerSettings) -> uvicorn.Config:
    limits = settings.limits
    return uvicorn.Config(
        app,
        http=protocol_with(limits),
        ws="none",
        loop="uvloop",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who is calling is not for a header to say
        date_header=True,
        backlog=BACKLOG,
        timeout_keep_alive=limits.keep_alive_seconds,  # type: ignore[arg-type]  # it is given to call_later
        timeout_graceful_shutdown=settings.server.stop_seconds,  # type: ignore[arg-type]
    )


async def _serve(settings: ServerSettings, listening: socket.socket, siblings: Path | None) -> None:
    async with furnished(settings) as (context, app), answering(siblings, context.broker.metrics.metrics()):
        context.siblings = siblings
        cap = settings.schedules.keepalive_cap_seconds
        await context.broker.watch_schedules(timedelta(seconds=cap) if cap else None)
        _say_where(settings, listening)
        await Server(uvicorn_config(app, settings), context).serve([listening])


def _run_one(settings: ServerSettings, listening: socket.socket, siblings: Path | None = None) -> None:
    """One process that serves, until it is told to stop. It finds those beside it in the folder `siblings`."""
    import uvloop  # noqa: PLC0415 - not on every platform; named when it is missing

    logs.set_up(settings.log)
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    uvloop.run(_serve(settings, listening, siblings))


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """Stop as if told to, when the supervisor is gone: nobody else would tell this process, and it holds the port."""
    parent.join()
    log.warning("the supervisor is gone; stopping")
    os.kill(os.getpid(), signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens; said in a sentence if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because event loops switch Nagle's delay off only where it is.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening.set_inheritable(True)
    return listening


def _say_where(settings: ServerSettings, listening: socket.socket) -> None:
    """Once the store is open: whoever reads this may call."""
    address, port = listening.getsockname()[:2]
    where = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    log.info(
        "listening on %s, store %s, authentication: %s",
        where,
        without_password(settings.store),
        settings.server.auth,
    )


def serve(settings: ServerSettings) -> int:
    """Serve until SIGTERM or SIGINT; then answer who waits, finish what is under way, and exit 0."""
    logs.set_up(settings.log)
    workers = settings.server.workers
    if workers > 1 and not capabilities_of(settings.store).serves_many_processes:
        raise Invalid("server.workers", "must be 1 on this store; several processes need PostgreSQL")
    listening = bind(settings.server.host, settings.server.port)
    if workers == 1:
        _run_one(settings, listening)
    else:
        with tempfile.TemporaryDirectory(prefix="qo-serve-") as folder:
            Supervisor(settings, listening, Path(folder)).run()
    log.info("stopped")
    return 0


class Supervisor:
    """Keeps several serving processes alive; a new one takes the place of one that dies, with backoff."""

    def __init__(self, settings: ServerSettings, listening: socket.socket, siblings: Path) -> None:
        self._settings = settings
        self._listening = listening
        self._siblings = siblings
        self._context = multiprocessing.get_context("spawn")
        self._stopping = threading.Event()

    def run(self) -> None:
        for each in SIGNALS:
            signal.signal(each, self._stop)
        backoff = LoopBackoff(FIRST_REST_SECONDS, LONGEST_REST_SECONDS)
        began = time.monotonic()
        processes = [self._start() for _ in range(self._settings.server.workers)]
        while not self._stopping.is_set():
            wait([process.sentinel for process in processes], timeout=0.5)
            dead = [process for process in processes if not process.is_alive()]
            if not dead or self._stopping.is_set():
                continue
            if time.monotonic() - began > LONGEST_REST_SECONDS:
                backoff.succeeded()
            rest = backoff.failed()
            log.warning("%d serving processes died; starting others in %.1f s", len(dead), rest)
            self._stopping.wait(rest)
            began = time.monotonic()
            processes = [process for process in processes if process not in dead]
            processes += [] if self._stopping.is_set() else [self._start() for _ in dead]
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()

    def _start(self) -> multiprocessing.process.BaseProcess:
        given = self._settings, self._listening, self._siblings
        process = self._context.Process(target=_run_one, args=given, daemon=False)
        process.start()
        return process

    def _stop(self, *_: object) -> None:
        self._stopping.set()
