"""traces: what consumers noted about messages."""

from __future__ import annotations

from typing import Any

from qo.core.outcome import Trace
from qo.core.verbs import TRACES_LIMIT
from qo.stores.pages import PAGE_BYTES
from qo.stores.postgres.call import Call


async def add(call: Call, trace: Trace) -> None:
    values = (
        trace.id, trace.queue, trace.key, trace.name, trace.group, list(trace.names), trace.event, trace.data,
        trace.created_at,
    )  # fmt: skip
    await call.run("add_trace", lambda connection, _: connection.execute(call.sql.add_trace, *values))


async def of_message(call: Call, queue: str, key: str, name: str) -> list[Trace]:
    return [_trace(row) for row in await _rows(call, call.sql.traces, queue, key, name, TRACES_LIMIT, PAGE_BYTES)]


async def by_name(call: Call, name: str, limit: int, offset: int) -> tuple[list[Trace], int]:
    rows = await _rows(call, call.sql.traces_by_name, name, limit, offset, PAGE_BYTES)
    return [_trace(row) for row in rows], await call.value("traces", call.sql.count_traces, name)


async def names(call: Call, limit: int, offset: int) -> tuple[list[tuple[str, int]], int]:
    rows = await _rows(call, call.sql.trace_names, limit, offset)
    return [(name, count) for name, count in rows], await call.value("traces", call.sql.count_trace_names)


async def _rows(call: Call, sql: str, *values: Any) -> list[Any]:
    rows: list[Any] = await call.run("traces", lambda connection, _: connection.fetch(sql, *values))
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
