"""records: what is arranged rather than moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qo.core.record import Due, Put, Record, RecordChange
from qo.stores.idempotency import check_record
from qo.stores.postgres.call import Call
from qo.stores.postgres.pool import Connection


async def change_on(call: Call, connection: Connection, changes: Sequence[RecordChange]) -> list[int]:
    """Make the changes; the versions that were written or removed. A record that is not as expected undoes the unit."""
    puts = [each if isinstance(each, Put) else None for each in changes]
    rows = await connection.fetch(
        call.sql.change_records,
        [each.kind for each in changes],
        [each.name for each in changes],
        [None if each is None else each.body for each in puts],
        [None if each is None else each.due_at for each in puts],
        [each.expected for each in changes],
        call.now,
    )
    answers = {row["number"] - 1: (row["before"], row["version"]) for row in rows}
    return [check_record(each, number, *answers[number]) for number, each in enumerate(changes)]


async def find(call: Call, kind: str, name: str) -> Record | None:
    rows = await _rows(call, "record", call.sql.record, kind, name)
    return _record(rows[0]) if rows else None


async def list_all(call: Call, kind: str, after: str, limit: int) -> list[Record]:
    return [_record(row) for row in await _rows(call, "records", call.sql.records, kind, after, limit)]


async def due(call: Call, kind: str, limit: int) -> Due:
    """The last row is not a record: it has the time of the next."""
    *rows, last = await _rows(call, "due_records", call.sql.due_records, kind, call.now, limit)
    return Due(tuple(_record(row) for row in rows), last["due_at"])


async def _rows(call: Call, verb: str, sql: str, *values: Any) -> list[Any]:
    rows: list[Any] = await call.run(verb, lambda connection, _: connection.fetch(sql, *values))
    return rows


def _record(row: Any) -> Record:
    return Record(
        kind=row["kind"], name=row["name"], version=row["version"], due_at=row["due_at"], body=bytes(row["body"])
    )
