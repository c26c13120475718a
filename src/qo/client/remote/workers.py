"""workers: the registry, kept by a server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from qo.client.remote.calls import path_of
from qo.client.remote.transport import Transport
from qo.core.scaling import Demand
from qo.core.worker import Heartbeat, WaitingKind, WorkerInfo
from qo.wire.operations.workers import DEREGISTER, HEARTBEAT, SCALING, WORKERS
from qo.wire.workers import KeptReply, ScalingReply, WorkersReply

MOST_ASKED = 90
"""Parameters that a server takes in one question. Who takes more kinds than that hears of all."""


class RemoteWorkers:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> bool:
        kept = True
        for each in heartbeats:
            answer = await self._transport.call(HEARTBEAT.method, path_of(HEARTBEAT, {"id": each.id}), each)
            kept &= msgspec.json.decode(answer.body, type=KeptReply).kept
        return kept

    async def adopt(self, id: str) -> bool:
        """Whether the worker is registered. The server itself vouches for workers whose claims wait there."""
        return any(each.id == id for each in await self.workers())

    async def disown(self, ids: Sequence[str]) -> None:
        """The server notices."""

    async def deregister(self, ids: Sequence[str]) -> None:
        for id in ids:
            await self._transport.call(DEREGISTER.method, path_of(DEREGISTER, {"id": id}))

    async def workers(self) -> Sequence[WorkerInfo]:
        return (await self._all()).workers

    async def unserved(self) -> Sequence[WaitingKind]:
        return (await self._all()).unserved

    async def _all(self) -> WorkersReply:
        answer = await self._transport.call(WORKERS.method, WORKERS.path)
        return msgspec.json.decode(answer.body, type=WorkersReply)


async def remote_scaling(
    transport: Transport, queues: Sequence[str], group: str, kinds: Collection[str] | None, wait_ms: int = 0
) -> ScalingReply | None:
    """What a server says of the work there is; None: nothing came while it waited."""
    listed = list(kinds or ())
    query: dict[str, Any] = {"group": group, "queue": list(queues)}
    if len(listed) + len(queues) + 1 < MOST_ASKED:
        query["kind"] = listed
    if wait_ms > 0:
        query |= {"wait": "true", "timeout_ms": wait_ms}
    answer = await transport.call(SCALING.method, path_of(SCALING, {}, query), waits=wait_ms / 1000)
    return None if answer.status == 204 else msgspec.json.decode(answer.body, type=ScalingReply)


def demand_there(said: ScalingReply) -> Demand:
    """What there is to do, its times by the store's clock."""
    return Demand(
        waiting=said.waiting,
        runnable=said.runnable,
        running=said.running,
        oldest_at=said.oldest_at,
        next_at=said.next_at,
    )


def demand_here(said: ScalingReply, now: datetime) -> Demand:
    """The same by our own clock, from the lengths that the server says."""
    return msgspec.structs.replace(
        demand_there(said),
        oldest_at=None if said.oldest_at is None else now - timedelta(seconds=said.oldest_seconds),
        next_at=None if said.next_seconds is None else now + timedelta(seconds=said.next_seconds),
    )


def left_ms(until: datetime | None, now: datetime, longest_ms: int) -> int:
    """How long the next request may wait."""
    return longest_ms if until is None else max(0, min(int((until - now).total_seconds() * 1000), longest_ms))
