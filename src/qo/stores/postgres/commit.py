"""commit: what is said about messages by their names, looked up and then settled under a lease."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qo.core.lane import LaneId
from qo.core.lease import Commit, Committed, LeaseToken, Settlement
from qo.core.message import id_text
from qo.core.outcome import Record, Standing
from qo.stores.commits import BEFORE, COMMIT_LEASE, LOST, STALE_BEFORE, UNKNOWN, answered, strongest
from qo.stores.postgres.keys import opening
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.settle import answers_from, columns_of
from qo.stores.sealing import opened

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

Proof = tuple[int, str | None]
"""A cursor and the token that a commit came with: what is judged together."""


async def commit(engine: PostgresEngine, commits: Sequence[Commit]) -> list[Committed]:
    if not commits:
        return []

    async def work(connection: Connection, _: bool) -> list[Committed]:
        if all(each.token is not None for each in commits):
            return await commit_on(engine, connection, commits)  # a look, and one settle: a transaction by itself
        async with connection.transaction():
            return await commit_on(engine, connection, commits)

    answers: list[Committed] = await engine.call("commit", work)
    return answers


async def commit_on(engine: PostgresEngine, connection: Connection, commits: Sequence[Commit]) -> list[Committed]:
    rows = await connection.fetch(engine.sql.resolve, *_columns(commits), engine.now)
    answers = [_at_once(each, row) for each, row in zip(commits, rows, strict=True)]
    proofs: dict[Proof, list[int]] = {}
    for number, answer in enumerate(answers):
        if answer is None:
            proofs.setdefault((rows[number]["cursor_id"], commits[number].token), []).append(number)
    settlements: list[Settlement] = []
    places: dict[int, int] = {}
    for (cursor, token), numbers in sorted(proofs.items(), key=lambda each: each[0][0]):
        proof = token or await _seized(engine, connection, cursor, max(rows[number]["place"] for number in numbers))
        reports = strongest((rows[number]["place"], commits[number].report) for number in numbers)
        at = {offset: len(settlements) + count for count, offset in enumerate(reports)}
        for number in numbers:
            if proof is None:
                answers[number] = BEFORE
            else:
                places[number] = at[rows[number]["place"]]
        if proof is not None:
            lane = LaneId(rows[numbers[0]]["lane"])
            settlements += [
                Settlement(token=LeaseToken(proof), lane=lane, offset=offset, report=report)
                for offset, report in reports.items()
            ]
    if settlements:
        row = await connection.fetchrow(engine.sql.settle, *columns_of(settlements), None, engine.draw, engine.now)
        settled = answers_from(row, len(settlements), unsure=False)
        for number, place in places.items():
            answers[number] = answered(settled[place])
    return [UNKNOWN if answer is None else answer for answer in answers]


def _at_once(said: Commit, row: Any) -> Committed | None:
    """The answer to a commit that changes nothing; None to one that may."""
    place, stale = row["place"], row["stale"]
    if row["cursor_id"] is None or place is None:
        return UNKNOWN
    if row["passed"]:
        return STALE_BEFORE if stale else BEFORE
    if stale:
        return LOST
    if said.token is not None and not row["first"] <= place < row["last"]:
        return UNKNOWN
    return None


async def _seized(engine: PostgresEngine, connection: Connection, cursor: int, offset: int) -> str | None:
    token = f"commit-{secrets.token_hex(16)}"
    seconds = COMMIT_LEASE.total_seconds()
    held: str | None = await connection.fetchval(
        engine.sql.seize, cursor, offset, token, seconds, engine.draw, engine.now
    )
    return held


def _columns(commits: Sequence[Commit]) -> tuple[list[Any], ...]:
    return (
        [each.queue for each in commits],
        [each.key for each in commits],
        [each.name for each in commits],
        [each.group for each in commits],
        [each.token for each in commits],
    )


async def record(engine: PostgresEngine, queue: str, key: str, name: str) -> Record | None:
    """A message by its name in a lane, and how far each group is with it."""

    async def read(connection: Connection, _: bool) -> tuple[Any, list[Any]] | None:
        found = await connection.fetchrow(engine.sql.record, queue, key, name)
        return None if found is None else (found, await connection.fetch(engine.sql.standings, found["lane"]))

    found = await engine.call("record", read)
    if found is None:
        return None
    row, groups = found
    now = engine.local_now

    def parsed() -> Record:
        payload, headers = opened(
            engine.keys.to_open, queue, row["payload"], json.loads(row["headers"]) if row["headers"] else {}
        )
        return Record(
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

    return await opening(engine, parsed)


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
