"""ack_by_name: what is said about messages by their names, looked up and then settled under a lease."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from qo.core.lane import LaneId
from qo.core.lease import AckByName, Acked, LeaseToken, Settlement
from qo.core.message import TRANSACTION, id_text
from qo.core.outcome import NamedMessage, Standing
from qo.stores.acks import ACK_LEASE, BEFORE, LOST, STALE_BEFORE, UNKNOWN, answered, lowest, strongest
from qo.stores.postgres.call import Call
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.settle import answers_from, columns_of
from qo.stores.sealing import Stored, shown


async def ack_by_name(call: Call, acks: Sequence[AckByName]) -> list[Acked]:
    if not acks:
        return []
    attempt_id = secrets.token_hex(16)

    async def work(connection: Connection, again: bool) -> list[Acked]:
        if all(each.token is not None for each in acks):
            return await ack_on(call, connection, acks, attempt_id, again=again)  # a look, and one settle
        async with connection.transaction():
            return await ack_on(call, connection, acks, attempt_id, again=again)

    answers: list[Acked] = await call.run("ack_by_name", work)
    return answers


class Found(NamedTuple):
    """Where the message of an ack is, and under what it is settled."""

    lane: int
    offset: int
    cursor: int
    token: str | None


async def resolved(call: Call, connection: Connection, acks: Sequence[AckByName]) -> list[Any]:
    rows = [dict(row) for row in await connection.fetch(call.sql.resolve, *_columns(acks), call.now)]
    leased: dict[tuple[int, int, int], dict[str, list[int]]] = {}
    for said, row in zip(acks, rows, strict=True):
        if row["doubtful"]:
            place = row["lane"], row["first"], row["last"]
            if place not in leased:
                leased[place] = await _names_between(call, connection, *place)
            offsets = leased[place].get(said.name)
            row["place"] = row["place"] if offsets is None else lowest(offsets, row["unsettled"])
    return rows


async def _names_between(call: Call, connection: Connection, lane: int, first: int, last: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for offset, headers in await connection.fetch(call.sql.headers_between, lane, first, last):
        found.setdefault(json.loads(headers).get(TRANSACTION, ""), []).append(offset)
    return found


async def ack_on(
    call: Call, connection: Connection, acks: Sequence[AckByName], attempt_id: str, *, again: bool = False
) -> list[Acked]:
    """Acknowledge by name on a connection. `again`: an earlier try of this call may have been made after all."""
    rows = await resolved(call, connection, acks)
    tried = await _tried(call, connection, rows, attempt_id) if again else set()
    answers = [_at_once(said, row, again, tried, attempt_id) for said, row in zip(acks, rows, strict=True)]
    found = {number: _found(acks[number], row) for number, row in enumerate(rows) if answers[number] is None}
    if any(each.token is None for each in found.values()):
        await connection.execute(call.sql.lock_cursors, [each.cursor for each in found.values()])
    sources: dict[tuple[int, int, str | None], list[int]] = {}
    for number, place in found.items():
        sources.setdefault((place.lane, place.cursor, place.token), []).append(number)
    settlements: list[Settlement] = []
    places: dict[int, int] = {}
    for (lane, cursor, token), numbers in sorted(sources.items(), key=lambda each: each[0][:2]):
        proof = token
        if proof is None:
            own = _own_token(attempt_id, cursor)
            last = max(found[number].offset for number in numbers)
            proof = own if own in tried else await _seized(call, connection, cursor, last, own)
        if proof is None:
            for number in numbers:
                answers[number] = BEFORE
            continue
        reports = strongest((found[number].offset, acks[number].report) for number in numbers)
        at = {offset: len(settlements) + count for count, offset in enumerate(reports)}
        places |= {number: at[found[number].offset] for number in numbers}
        settlements += [
            Settlement(token=LeaseToken(proof), lane=LaneId(lane), offset=offset, report=report)
            for offset, report in reports.items()
        ]
    if settlements:
        row = await connection.fetchrow(call.sql.settle, *columns_of(settlements), None, call.draw, call.now)
        settled = answers_from(row, len(settlements))
        for number, item in places.items():
            answers[number] = answered(settled[item], unsure=again)
    return [UNKNOWN if answer is None else answer for answer in answers]


def _own_token(attempt_id: str, cursor: int) -> str:
    return f"ack-{attempt_id}-{cursor}"


async def _tried(call: Call, connection: Connection, rows: Sequence[Any], attempt_id: str) -> set[str]:
    """Leases that an earlier try of this call took for itself."""
    tokens = [_own_token(attempt_id, row["cursor_id"]) for row in rows if row["cursor_id"] is not None]
    return {row[0] for row in await connection.fetch(call.sql.known_tokens, tokens)}


def _found(said: AckByName, row: Any) -> Found:
    if row["place"] is None:
        return Found(row["open_lane"], row["open_place"], 0, said.token)
    return Found(row["lane"], row["place"], row["cursor_id"], said.token)


def _at_once(said: AckByName, row: Any, again: bool, tried: set[str], attempt_id: str) -> Acked | None:
    """The answer to an ack that changes nothing; None for one that may change something."""
    place, stale = row["place"], row["stale"]
    if row["cursor_id"] is None or place is None:
        return None if row["open_lane"] is not None and said.token is not None else UNKNOWN
    if again and (said.token is not None or _own_token(attempt_id, row["cursor_id"]) in tried):
        return None  # what that try made of it, its lease says
    if place < row["unsettled"]:
        return STALE_BEFORE if stale else BEFORE
    if stale:
        return LOST
    if said.token is not None and not row["first"] <= place < row["last"]:
        return UNKNOWN
    return None


async def _seized(call: Call, connection: Connection, cursor: int, offset: int, token: str) -> str | None:
    seconds = ACK_LEASE.total_seconds()
    held: str | None = await connection.fetchval(call.sql.seize, cursor, offset, token, seconds, call.draw, call.now)
    return held


def _columns(acks: Sequence[AckByName]) -> tuple[list[Any], ...]:
    return (
        [each.queue for each in acks],
        [each.key for each in acks],
        [each.name for each in acks],
        [each.group for each in acks],
        [each.token for each in acks],
    )


async def named_message(call: Call, queue: str, key: str, name: str) -> NamedMessage | None:
    """A message by its name in a lane, and how far each group is with it."""

    async def read(connection: Connection, _: bool) -> tuple[Any, list[Any]] | None:
        found = await connection.fetchrow(call.sql.named_message, queue, key, name)
        return None if found is None else (found, await connection.fetch(call.sql.standings, found["lane"]))

    found = await call.run("record", read)
    if found is None:
        return None
    row, groups = found
    now = call.store_now()

    await call.keys.learn([row["headers"]])
    stored = Stored(queue, key, None, row["payload"], json.loads(row["headers"]) if row["headers"] else {})
    payload, headers = shown(call.keys.to_open, stored)
    return NamedMessage(
        id=id_text(row["id"]),
        queue=queue,
        key=key,
        offset=row["offset"],
        kind=row["kind"],
        payload=payload,
        headers=headers,
        created_at=row["created_at"],
        standings=tuple(_standing(row["offset"], each, now) for each in groups),
    )


def _standing(offset: int, row: Any, now: Any) -> Standing:
    group, claimed_at, position, attempts, start, end, expires_at = row
    live = start is not None and expires_at > now
    return Standing(
        group=group,
        known=claimed_at is not None,
        passed=offset < (start if start is not None else position),
        attempts=attempts if offset in (position, start) else 0,
        lease_expires_at=expires_at if live and start <= offset < end else None,
    )
