"""workers: who registered, and who of them lives. A session that listens vouches for its process's workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from qo.core.worker import (
    FORGET_AFTER,
    SILENT_AFTER,
    WORKERS_LIMIT,
    Heartbeat,
    WaitingKind,
    WorkerInfo,
    WorkerState,
    unserved,
)

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Heartbeat).decode


async def heartbeat(engine: PostgresEngine, heartbeats: Sequence[Heartbeat]) -> bool:
    ids = [each.id for each in heartbeats]
    kept = not engine.listener.must_poll and await engine.listener.adopt(ids)
    said = [_encode(each).decode() for each in heartbeats]
    await engine.value(
        "heartbeat", engine.sql.heartbeat, ids, said, kept, engine.now, FORGET_AFTER, engine.address.schema
    )
    return kept


async def adopt(engine: PostgresEngine, id: str) -> bool:
    known = await engine.value("adopt", engine.sql.keep_worker, id, engine.now) is not None
    if known and not engine.listener.must_poll:
        await engine.listener.adopt([id])
    return known


async def deregister(engine: PostgresEngine, ids: Sequence[str]) -> None:
    await engine.value("deregister", engine.sql.deregister, list(ids))
    await engine.listener.disown(ids)


async def every(engine: PostgresEngine) -> list[WorkerInfo]:
    rows = await engine.call(
        "workers",
        lambda connection, _: connection.fetch(
            engine.sql.workers, engine.now, SILENT_AFTER, WORKERS_LIMIT, engine.address.schema
        ),
    )
    found = [
        WorkerInfo(
            **msgspec.structs.asdict(_decode(said)),
            seen_at=seen_at,
            state=WorkerState.ALIVE if alive else WorkerState.GONE,
        )
        for said, seen_at, alive in rows
    ]
    return sorted(found, key=lambda each: each.id)


async def nobody_takes(engine: PostgresEngine) -> tuple[WaitingKind, ...]:
    rows = await engine.call(
        "unserved", lambda connection, _: connection.fetch(engine.sql.waiting_kinds, WORKERS_LIMIT, engine.now)
    )
    waiting = [WaitingKind(queue=row[0], group=row[1], kind=row[2], oldest_at=row[3]) for row in rows]
    return unserved(waiting, await every(engine), rows[0][4]) if waiting else ()
