"""demand: how much work there is, to decide how many workers there should be."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from qo.core.scaling import DEMAND_LANES, Demand
from qo.stores.sqlite import inspect
from qo.stores.sqlite.moments import maybe_moment
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("demand")


def demand(tx: Transaction, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
    waiting = runnable = running = 0
    oldest: list[int] = []
    moments: list[int] = []
    for name in dict.fromkeys(queues):
        queue = tx.queue(name)
        group_id = None if queue is None or queue.paused else tx.group_id(queue, group)
        if queue is None or group_id is None:
            continue
        in_lanes, lanes, head = tx.row(SQL.lanes, group_id, tx.now, _listed(kinds), DEMAND_LANES) or (0, 0, None)
        retries, retried = tx.row(SQL.retries, group_id, tx.now, _listed(kinds), DEMAND_LANES) or (0, None)
        intake, due = tx.row(SQL.intake, queue.id, tx.now, _listed(kinds), DEMAND_LANES) or (0, None)
        live, lost = _leased(tx, group_id, kinds)
        waiting += in_lanes + retries + intake + lost
        runnable += lanes + retries + intake + lost
        running += live
        oldest += [time for time in (head, retried, due) if time is not None]
        moments += _next(tx, queue, group_id)
    return Demand(
        waiting=waiting,
        runnable=runnable,
        running=running,
        oldest_at=maybe_moment(min(oldest, default=None)),
        next_at=maybe_moment(min(moments, default=None)),
    )


def _leased(tx: Transaction, group_id: int, kinds: Collection[str] | None) -> tuple[int, int]:
    """Unsettled messages under live leases, and under those that have run out."""
    live = lost = 0
    for row in tx.rows(inspect.SQL.live_leases, group_id):
        if kinds is not None and row[15] is not None and row[15] not in kinds:
            continue
        if row[11] > tx.now:
            live += inspect.unsettled_of(row)
        else:
            lost += inspect.unsettled_of(row)
    return live, lost


def _next(tx: Transaction, queue: QueueRow, group_id: int) -> list[int]:
    found: int | None = tx.value(SQL.next_moment, queue.id, group_id, tx.now)
    return [] if found is None else [found]


def _listed(kinds: Collection[str] | None) -> str | None:
    return None if kinds is None else json.dumps(sorted(kinds))
