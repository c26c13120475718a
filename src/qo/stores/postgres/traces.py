"""traces: what consumers noted about messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qo.core.outcome import Trace
from qo.core.verbs import TRACES_LIMIT
from qo.stores.pages import PAGE_BYTES

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine


async def add(engine: PostgresEngine, trace: Trace) -> None:
    values = (
        trace.id, trace.queue, trace.key, trace.name, trace.group, list(trace.names), trace.event, trace.data,
        trace.created_at,
    )  # fmt: skip
    await engine.call("add_trace", lambda connection, _: connection.execute(engine.sql.add_trace, *values))


async def of_message(engine: PostgresEngine, queue: str, key: str, name: str) -> list[Trace]:
    return [_trace(row) for row in await _rows(engine, engine.sql.traces, queue, key, name, TRACES_LIMIT, PAGE_BYTES)]


async def by_name(engine: PostgresEngine, name: str, limit: int, offset: int) -> tuple[list[Trace], int]:
    rows = await _rows(engine, engine.sql.traces_by_name, name, limit, offset, PAGE_BYTES)
    return [_trace(row) for row in rows], await engine.value("traces", engine.sql.count_traces, name)


async def names(engine: PostgresEngine, limit: int, offset: int) -> tuple[list[tuple[str, int]], int]:
    rows = await _rows(engine, engine.sql.trace_names, limit, offset)
    return [(name, count) for name, count in rows], await engine.value("traces", engine.sql.count_trace_names)


async def _rows(engine: PostgresEngine, sql: str, *values: Any) -> list[Any]:
    rows: list[Any] = await engine.call("traces", lambda connection, _: connection.fetch(sql, *values))
    return rows


def _trace(row: Any) -> Trace:
    id, queue, key, name, group, names, event, data, created_at = row
    return Trace(
        id=id,
        queue=queue,
        key=key,
        name=name,
        group=group,
        names=tuple(names),
        event=event,
        data=data,
        created_at=created_at,
    )
