"""claim: wants as JSON, deliveries from rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from qo.core.lane import LaneId
from qo.core.lease import Claimed, Delivered, Nothing, Want
from qo.stores.postgres.pool import Connection

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

ASK_AT_ONCE = {"lane_id": None, "wait": timedelta(0), "owner_limited": False, "signal": None}
"""The row of a want that holds nothing, after a lost answer: nobody knows any more when it was to ask again."""
NO_HEADERS: dict[str, str] = {}


def wants_text(wants: Sequence[Want]) -> str:
    return msgspec.json.encode([_plain(want) for want in wants]).decode()


def _plain(want: Want) -> dict[str, Any]:
    where = want.filter
    return {
        "token": want.token,
        "queues": want.queues,
        "filter": None if where is None else {"namespace": where.namespace, "task": where.task},
        "group": want.group,
        "kinds": None if want.kinds is None else sorted(want.kinds),
        "key": want.key,
        "messages": want.messages,
        "lanes": want.lanes,
        "lane_messages": want.lane_messages,
        "lease": None if want.lease is None else want.lease.total_seconds(),
        "owner": want.owner,
        "auto_settle": want.auto_settle,
    }


def claimed_from(engine: PostgresEngine, rows: Sequence[Any], wants: Sequence[Want]) -> list[Claimed | Nothing]:
    """Each want's deliveries, or when it is to ask again, by our own clock."""
    found: list[list[Delivered]] = [[] for _ in wants]
    nothing: list[Nothing] = [Nothing(None)] * len(wants)
    for row in rows:
        number = row["want"]
        if row["lane_id"] is None:
            wait = row["wait"]
            nothing[number] = Nothing(None if wait is None else engine.local_now + wait, row["owner_limited"])
        else:
            found[number].append(_delivered(row, wants[number]))
    return [Claimed(tuple(each)) if each else empty for each, empty in zip(found, nothing, strict=True)]


def _delivered(row: Any, want: Want) -> Delivered:
    (
        _, lane, offset, id, queue, key, kind, payload, headers, priority, attempt, created_at, due_at, entered_at,
        expires_at, retry_of, *_,
    ) = row.values()  # fmt: skip
    return Delivered(
        token=want.token,
        lane=LaneId(lane),
        offset=offset,
        id=id,
        queue=queue,
        key=key,
        kind=kind,
        payload=payload,
        headers=json.loads(headers) if headers else NO_HEADERS,
        priority=priority,
        attempt=attempt,
        created_at=created_at,
        due_at=due_at or created_at,
        entered_at=entered_at,
        expires_at=expires_at,
        retry_of=retry_of,
    )


async def claim_again(engine: PostgresEngine, connection: Connection, wants: Sequence[Want]) -> list[Any]:
    """After a lost answer: what the tokens hold. Nothing, if that claim took nothing or was never made."""
    rows: list[Any] = []
    for number, want in enumerate(wants):
        held = await connection.fetch(engine.sql.claimed, want.token, number)
        rows += held or [{**ASK_AT_ONCE, "want": number}]
    return rows if any(row["lane_id"] is not None for row in rows) else []
