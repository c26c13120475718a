"""workers: who registered, and who of them lives. A session that listens vouches for its process's workers."""

from __future__ import annotations

from collections.abc import Sequence

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
from qo.stores.postgres.call import Call

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Heartbeat).decode


async def heartbeat(call: Call, heartbeats: Sequence[Heartbeat]) -> bool:
    ids = [each.id for each in heartbeats]
    kept = not call.listener.must_poll and await call.listener.adopt(ids)
    said = [_encode(each).decode() for each in heartbeats]
    await call.value("heartbeat", call.sql.heartbeat, ids, said, kept, call.now, FORGET_AFTER, call.address.schema)
    return kept


async def adopt(call: Call, id: str) -> bool:
    known = await call.value("adopt", call.sql.keep_worker, id, call.now) is not None
    if known and not call.listener.must_poll:
        await call.listener.adopt([id])
    return known


async def deregister(call: Call, ids: Sequence[str]) -> None:
    await call.value("deregister", call.sql.deregister, list(ids))
    await call.listener.disown(ids)


async def every(call: Call) -> list[WorkerInfo]:
    rows = await call.run(
        "workers",
        lambda connection, _: connection.fetch(
            call.sql.workers, call.now, SILENT_AFTER, WORKERS_LIMIT, call.address.schema
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


async def nobody_takes(call: Call) -> tuple[WaitingKind, ...]:
    rows = await call.run(
        "unserved", lambda connection, _: connection.fetch(call.sql.waiting_kinds, WORKERS_LIMIT, call.now)
    )
    waiting = [WaitingKind(queue=row[0], group=row[1], kind=row[2], oldest_at=row[3]) for row in rows]
    return unserved(waiting, await every(call), rows[0][4]) if waiting else ()
