"""traces: what consumers noted about messages. Kept for a week."""

from __future__ import annotations

import json
from collections.abc import Iterator

from qo.core.outcome import Trace
from qo.core.retention import KEEP_TRACES
from qo.core.verbs import TRACES_LIMIT
from qo.stores.pages import PAGE_BYTES, trace_size, within
from qo.stores.sqlite.moments import micros, moment, span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("traces")


def add(tx: Transaction, trace: Trace) -> None:
    number = tx.insert(
        SQL.add, trace.id, trace.queue, trace.key, trace.name, trace.group, json.dumps(trace.names), trace.event,
        trace.data, micros(trace.created_at),
    )  # fmt: skip
    tx.many(SQL.add_name, [(name, number) for name in trace.names])


def of_message(tx: Transaction, queue: str, key: str, name: str) -> list[Trace]:
    return _page(tx.each(SQL.of_message, queue, key, name, TRACES_LIMIT))


def by_name(tx: Transaction, name: str, limit: int, offset: int) -> tuple[list[Trace], int]:
    return _page(tx.each(SQL.by_name, name, limit, offset)), tx.value(SQL.count_by_name, name)


def names(tx: Transaction, limit: int, offset: int) -> tuple[list[tuple[str, int]], int]:
    return [(name, count) for name, count in tx.rows(SQL.names, limit, offset)], tx.value(SQL.count_names)


def drop_old(tx: Transaction, limit: int) -> int | None:
    """Answers when the next is old enough."""
    rows = tx.rows(SQL.old, tx.now - span(KEEP_TRACES), limit)
    tx.many(SQL.drop_names, rows)
    tx.many(SQL.drop, rows)
    oldest: int | None = tx.value(SQL.oldest)
    return None if oldest is None else oldest + span(KEEP_TRACES)


def _page(rows: Iterator[Row]) -> list[Trace]:
    found, _ = within(map(_trace, rows), trace_size, PAGE_BYTES)
    return found


def _trace(row: Row) -> Trace:
    id, queue, key, name, group, names, event, data, created_at = row
    return Trace(
        id=id,
        queue=queue,
        key=key,
        name=name,
        group=group,
        names=tuple(json.loads(names)),
        event=event,
        data=data,
        created_at=moment(created_at),
    )
