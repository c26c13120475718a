"""records: what is arranged rather than moved."""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.record import ABSENT, Delete, Due, Put, Record, RecordChange, version_of
from qo.stores.idempotency import check_record
from qo.stores.sqlite.moments import micros, moment
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("records")


def change(tx: Transaction, changes: Sequence[RecordChange]) -> list[int]:
    """Make the changes; the versions that were written or removed. A record that is not as expected undoes the unit."""
    versions = []
    for number, each in enumerate(changes):
        found = tx.value(SQL.version, each.kind, each.name) or ABSENT
        version = check_record(each, number, found, version_of(each, found, tx.now))
        match each:
            case Put():
                due = None if each.due_at is None else micros(each.due_at)
                tx.run(SQL.put, each.kind, each.name, version, due, each.body)
            case Delete():
                tx.run(SQL.delete, each.kind, each.name)
        if version != ABSENT:
            tx.hint_records(each.kind)
        versions.append(version)
    return versions


def find(tx: Transaction, kind: str, name: str) -> Record | None:
    row = tx.row(SQL.one, kind, name)
    return None if row is None else _record(row)


def list_all(tx: Transaction, kind: str, after: str, limit: int) -> list[Record]:
    return [_record(row) for row in tx.rows(SQL.list, kind, after, limit)]


def due(tx: Transaction, kind: str, limit: int) -> Due:
    records = tuple(_record(row) for row in tx.rows(SQL.due, kind, tx.now, limit))
    next_at = tx.value(SQL.next_due, kind, tx.now)
    return Due(records, None if next_at is None else moment(next_at))


def _record(row: Row) -> Record:
    kind, name, version, due_at, body = row
    return Record(
        kind=kind, name=name, version=version, due_at=None if due_at is None else moment(due_at), body=bytes(body)
    )
