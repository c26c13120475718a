"""extend: hold leases for longer, say what has started, learn what was canceled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qo.core.lane import LaneId
from qo.core.lease import Extended, Extension, Lost, Place
from qo.stores.postgres.call import Call


async def extend(call: Call, extensions: Sequence[Extension]) -> list[Extended | Lost]:
    started = [(each.token, place.lane, place.offset) for each in extensions for place in each.started]
    columns: list[list[Any]] = [
        [each.token for each in extensions],
        [each.lease.total_seconds() for each in extensions],
        *([list(column) for column in zip(*started, strict=True)] or [[], [], []]),
    ]
    rows = await call.run("extend", lambda c, _: c.fetch(call.sql.extend, *columns, call.now))
    found = {row["number"]: row for row in rows}
    return [_answer(found.get(number)) for number in range(1, len(extensions) + 1)]


def _answer(row: Any) -> Extended | Lost:
    if row is None:
        return Lost()
    places = zip(row["canceled_lanes"] or (), row["canceled_offsets"] or (), strict=True)
    return Extended(row["expires_at"], tuple(Place(LaneId(lane), offset) for lane, offset in places), row["held"])
