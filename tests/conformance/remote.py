"""An engine behind a real server: every verb goes over HTTP, what is not on the wire goes to the engine itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from uvicorn.server import ServerState

from qo.broker.broker import LocalBroker
from qo.client.remote.broker import RemoteBroker
from qo.client.remote.transport import Transport
from qo.core.lease import Claimed, Done, Nothing, Settled, Settlement, Undone, Unit, Want
from qo.core.message import NewMessage, Pushed
from qo.core.verbs import Engine
from qo.server.context import ServerContext
from qo.server.serve import bind, furnished, uvicorn_config
from qo.server.settings import JwtSettings, LimitSettings, ListenSettings, MetricSettings, QueenSettings, ServerSettings
from qo.testing.clock import ManualClock


class Running:
    """A server on the test's own event loop: the protocol and the application, without uvicorn's loop around them."""

    def __init__(self, url: str, context: ServerContext, state: ServerState, listening: asyncio.Server) -> None:
        self.url = url
        self.context = context
        self.state = state
        self.session: Any = None
        self.tokens: Any = None
        """What tests hang on to it."""
        self._listening = listening

    @property
    def connections(self) -> int:
        return len(self.state.connections)

    async def stop(self) -> None:
        self._listening.close()
        await self.context.stop()
        for connection in list(self.state.connections):
            connection.shutdown()
        while self.state.tasks:
            await asyncio.wait(self.state.tasks)


@contextlib.asynccontextmanager
async def serving(
    broker: LocalBroker,
    *,
    limits: LimitSettings | None = None,
    listen: ListenSettings | None = None,
    jwt: JwtSettings | None = None,
    metrics: MetricSettings | None = None,
    queen: QueenSettings | None = None,
) -> AsyncIterator[Running]:
    """A server on a free port, in front of a broker."""
    settings = ServerSettings(
        store="",
        limits=limits or LimitSettings(),
        server=listen or ListenSettings(port=0),
        jwt=jwt or JwtSettings(),
        metrics=metrics or MetricSettings(),
        queen=queen or QueenSettings(),
    )
    async with furnished(settings, broker) as (context, app):
        config = uvicorn_config(app, settings)
        config.load()
        protocol: Any = config.http_protocol_class
        state = ServerState()
        listening = await asyncio.get_running_loop().create_server(
            lambda: protocol(config, state, {}), sock=bind("127.0.0.1", 0)
        )
        running = Running(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", context, state, listening)
        try:
            yield running
        finally:
            await running.stop()


NOT_ON_THE_WIRE = frozenset(
    {
        "start_listening",
        "delete_record",
        "due_records",
        "put_record",
        "record",
        "records",
        "watch",
        "tidy",
        "listen",
        "reconfigure",
        "group_places",
        "drop_filters",
        "add_trace",
        "traces",
        "trace_names",
        "traces_by_name",
    }
)
"""What the suite asks of the engine itself, because a server does it by itself or only another wire has it."""


class OverHttp:
    """The verbs of an engine, each asked of the server. A batch of claims or units is one call for each."""

    def __init__(self, engine: Engine, broker: RemoteBroker) -> None:
        self._engine = engine
        self._broker = broker

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        return await self._broker.push(messages, nonce)

    async def claim(self, wants: Sequence[Want]) -> list[Claimed | Nothing]:
        return [await self._broker.claim(want) for want in wants]

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        return await self._broker.settle(settlements, then)

    async def extend(self, extensions: Sequence[Any]) -> Sequence[Any]:
        return await self._broker.extend(extensions)

    async def transact(self, units: Sequence[Unit]) -> list[Done | Undone]:
        return [await self._broker.transact(unit) for unit in units]

    def __getattr__(self, name: str) -> Any:
        for part in (self._broker.admin, self._broker.inspect, self._broker.access, self._broker.workers):
            if hasattr(part, name):
                return getattr(part, name)
        if name not in NOT_ON_THE_WIRE:
            raise AttributeError(f"'{name}' is not on the wire, and not in the list of what need not be")
        return getattr(self._engine, name)


@contextlib.asynccontextmanager
async def over_http(engine: Engine, clock: ManualClock) -> AsyncIterator[OverHttp]:
    local = LocalBroker(engine, clock=clock)
    await local._housekeeping.stop()  # the tests tidy themselves
    async with serving(local) as running:
        broker = RemoteBroker(Transport([running.url], None), clock.now)
        try:
            yield OverHttp(engine, broker)
        finally:
            await broker.close()
