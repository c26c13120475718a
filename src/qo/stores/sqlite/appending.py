"""Messages entering lanes: the log grows, and cursors that had nothing to do wake.

All of a batch enters together, in order, whichever lanes it goes to: the number of
statements does not grow with the number of lanes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from qo.core.message import NewMessage
from qo.core.outcome import JobState
from qo.core.queue import WINDOW_FULL, History
from qo.stores.sqlite.events import record_events
from qo.stores.sqlite.lanes import Lane, to_tidy
from qo.stores.sqlite.places import Stretch, place
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction, widened

SQL = statements("appending")
APPEND_PLAIN = widened(SQL.append_plain, shared=4)

_id, _payload = attrgetter("id"), attrgetter("payload")


class Entry(NamedTuple):
    """A message about to enter a lane: its columns, in the order of `SQL.append`."""

    id: bytes
    kind: str
    priority: int
    payload: bytes
    headers: str | None
    created_at: int
    due_at: int | None
    expires_at: int | None
    group_id: int | None = None
    retry_of: bytes | None = None


class Growth:
    """A lane that grows: its queue, and what its cursors need to know of the first message that comes."""

    __slots__ = ("expires_at", "group_id", "kind", "lane", "priority", "queue")

    def __init__(self, queue: QueueRow, lane: Lane, first: Entry) -> None:
        self.queue, self.lane = queue, lane
        _, self.kind, self.priority, _, _, _, _, self.expires_at, self.group_id, _ = first


def append(tx: Transaction, arrivals: Iterable[tuple[QueueRow, Lane, Entry]]) -> None:
    """Give each entry its lane's next offset, in this order, and wake the cursors that had nothing to do."""
    growing: dict[int, Growth] = {}
    rows, stretches = [], []
    now, lane_before, first = tx.now, None, 0
    for queue, lane, entry in arrivals:
        if lane is not lane_before:
            if lane_before is not None:
                stretches.append(Stretch(lane_before.id, first, lane_before.tail - first))
            lane_before, first = lane, lane.tail
            if lane.id not in growing:
                growing[lane.id] = Growth(queue, lane, entry)
                lane.entered_at = lane.enters_at(now)
        rows.append((lane.id, lane.tail, lane.entered_at, lane.kind, lane.priority, *entry))
        lane.tail += 1
    if lane_before is None:
        return
    stretches.append(Stretch(lane_before.id, first, lane_before.tail - first))
    ids = [row[5] for row in rows]
    place(tx, stretches, ids)
    tx.many(SQL.append, rows)
    addressed = [(row[0], row[1], row[13]) for row in rows if row[13] is not None]
    if addressed:
        tx.many(SQL.address, addressed)
    _wake(tx, list(growing.values()))
    told = {growth.lane.id for growth in growing.values() if growth.queue.settings.history is History.FULL}
    record_events(tx, [row[5] for row in rows if row[0] in told], JobState.QUEUED, ENTERED) if told else None


ENTERED = "entered its lane"


def append_plain(tx: Transaction, queue: QueueRow, lane: Lane, messages: Sequence[NewMessage]) -> None:
    """The same for messages of one open lane that say nothing but their payload, in fewer and wider statements."""
    ids: list[bytes] = list(map(_id, messages))
    own = ids * 2
    own[::2], own[1::2] = ids, map(_payload, messages)
    place(tx, [Stretch(lane.id, lane.tail, len(ids))], ids)
    lane.entered_at = lane.enters_at(tx.now)
    tx.run_wide(APPEND_PLAIN, (lane.id, lane.tail, lane.entered_at, tx.now), own, len(messages), step=1)
    lane.tail += len(ids)
    first = messages[0]
    _wake(tx, [Growth(queue, lane, Entry(first.id, first.kind, first.priority, b"", None, 0, None, None))])
    if queue.settings.history is History.FULL:
        record_events(tx, ids, JobState.QUEUED, ENTERED)


def _wake(tx: Transaction, growing: list[Growth]) -> None:
    """Note how far the lanes reach now, and wake their idle cursors."""
    tx.many(SQL.grow, [(each.lane.id, each.lane.tail, each.lane.entered_at) for each in growing])
    to_tidy(tx, [each.lane.id for each in growing])
    keyed = [
        (
            each.lane.id, each.kind, each.priority, each.lane.entered_at, each.expires_at, each.group_id, tx.now,
            each.lane.tail, WINDOW_FULL,
        )
        for each in growing if each.lane.keyed
    ]  # fmt: skip
    if keyed:
        tx.many(SQL.wake_keyed, keyed)
        full = [(e.lane.id, e.lane.tail, WINDOW_FULL) for e in growing if e.lane.keyed and e.queue.settings.window]
        tx.many(SQL.wake_full, full) if full else None
    if len(keyed) < len(growing):
        tx.many(
            SQL.wake_open,
            [(e.lane.id, e.kind, e.priority, e.lane.entered_at, e.group_id) for e in growing if not e.lane.keyed],
        )
    tx.hints.update(each.queue.name for each in growing)


def headers_text(headers: object) -> str | None:
    return json.dumps(headers) if headers else None
