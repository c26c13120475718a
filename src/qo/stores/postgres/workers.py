"""workers: who registered, and who of them lives. A session that listens vouches for its process's workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from qo.core.worker import (
    FORGET_AFTER,
    SILENT_AFTER,
    WORKERS_LIMIT,
    Beat,
    WaitingKind,
    WorkerInfo,
    WorkerState,
    unserved,
)

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Beat).decode


async def beat(engine: PostgresEngine, beats: Sequence[Beat]) -> bool:
    ids = [each.id for each in beats]
    kept = not engine.listener.must_poll and await engine.listener.keep(ids)
    said = [_encode(each).decode() for each in beats]
    await engine.value("beat", engine.sql.beat, ids, said, kept, engine.now, FORGET_AFTER, engine.address.schema)
    return kept


async def keep(engine: PostgresEngine, id: str) -> bool:
    known = await engine.value("keep", engine.sql.keep_worker, id, engine.now) is not None
    if known and not engine.listener.must_poll:
        await engine.listener.keep([id])
    return known


async def leave(engine: PostgresEngine, ids: Sequence[str]) -> None:
    await engine.value("leave", engine.sql.leave, list(ids))
    await engine.listener.let_go(ids)


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
