"""Messages entering lanes: the log grows, and cursors that had nothing to do wake.

All of a batch enters together, in order, whichever lanes it goes to: the number of
statements does not grow with the number of lanes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple

from qo.core.message import NewMessage
from qo.core.outcome import JobState
from qo.core.queue import WINDOW_FULL, History
from qo.stores.sqlite.events import record_events
from qo.stores.sqlite.lanes import TIDY_REST, Lane, to_tidy
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.places import Stretch, place
from qo.stores.sqlite.statements import as_json, statements
from qo.stores.sqlite.transaction import QueueRow, Transaction, widened

SQL = statements("appending")
CREATE_LANES = widened(SQL.create_lanes, shared=1)
APPEND = widened(SQL.append, shared=0)
APPEND_PLAIN = widened(SQL.append_plain, shared=4)
APPEND_KEYED = widened(SQL.append_keyed, shared=1)

_id, _payload = attrgetter("id"), attrgetter("payload")


Entry = tuple[bytes, str, int, bytes, str | None, int, int | None, int | None, int | None, bytes | None]
"""A message about to enter a lane, as columns: id, kind, priority, payload, headers, created_at, due_at, expires_at,
group_id, retry_of."""


class Growth(NamedTuple):
    """A lane that grows, with its queue and what is to be known of the first message that comes."""

    queue: QueueRow
    lane: Lane
    kind: str
    priority: int
    expires_at: int | None = None
    group_id: int | None = None


def append(tx: Transaction, arrivals: Sequence[tuple[QueueRow, Lane, Entry]]) -> None:
    """Give each entry its lane's next offset, in this order, and wake the cursors that had nothing to do."""
    if not arrivals:
        return
    growing: dict[int, Growth] = {}
    stretches: list[Stretch] = []
    rows: list[object] = []
    addressed = []
    now, lane_before, start = tx.now, None, 0
    for queue, lane, entry in arrivals:
        if lane is not lane_before:
            if lane_before is not None:
                stretches.append((lane_before.id, start, lane_before.tail - start))
            lane_before, start = lane, lane.tail
            if lane.id not in growing:
                growing[lane.id] = Growth(queue, lane, entry[1], entry[2], entry[7], entry[8])
                lane.entered_at = lane.enters_at(now)
        if lane.key is None:
            rows += (lane.id, lane.tail, lane.entered_at, entry[0], None, None, *entry[3:])
        else:
            rows += (lane.id, lane.tail, lane.entered_at, *entry)
        if entry[8] is not None:
            addressed.append((lane.id, lane.tail, entry[8]))
        lane.tail += 1
    assert lane_before is not None
    stretches.append((lane_before.id, start, lane_before.tail - start))
    place(tx, stretches, [entry[0] for _, _, entry in arrivals])
    tx.run_wide(APPEND, (), rows, len(arrivals), step=None)
    if addressed:
        tx.many(SQL.address, addressed)
    _wake(tx, list(growing.values()))
    told = [entry[0] for queue, _, entry in arrivals if queue.settings.history is History.FULL]
    if told:
        record_events(tx, told, JobState.QUEUED, ENTERED)


ENTERED = "entered its lane"


def append_plain(tx: Transaction, queue: QueueRow, lane: Lane, messages: Sequence[NewMessage]) -> None:
    """The same for messages of one open lane that say nothing but their payload, in fewer and wider statements."""
    ids: list[bytes] = list(map(_id, messages))
    own = ids * 2
    own[::2], own[1::2] = ids, map(_payload, messages)
    place(tx, [(lane.id, lane.tail, len(ids))], ids)
    lane.entered_at = lane.enters_at(tx.now)
    tx.run_wide(APPEND_PLAIN, (lane.id, lane.tail, lane.entered_at, tx.now), own, len(messages), step=1)
    lane.tail += len(ids)
    _wake(tx, [Growth(queue, lane, messages[0].kind, messages[0].priority)])
    if queue.settings.history is History.FULL:
        record_events(tx, ids, JobState.QUEUED, ENTERED)


def append_keyed(tx: Transaction, queue: QueueRow, lanes: Mapping[str, Lane], messages: Sequence[NewMessage]) -> None:
    """The same for messages of the keyed lanes of one queue, which say no more than payload, kind and priority."""
    growing: dict[str, Growth] = {}
    stretches: list[Stretch] = []
    rows: list[object] = []
    now = tx.now
    for message in messages:
        key = message.key
        assert key is not None
        lane = lanes[key]
        if key not in growing:
            growing[key] = Growth(queue, lane, message.kind, message.priority)
            lane.entered_at = lane.enters_at(now)
        stretches.append((lane.id, lane.tail, 1))
        rows += (lane.id, lane.tail, lane.entered_at, message.id, message.kind, message.priority, message.payload)
        lane.tail += 1
    ids = [message.id for message in messages]
    place(tx, stretches, ids)
    tx.run_wide(APPEND_KEYED, (now,), rows, len(messages), step=None)
    _wake(tx, list(growing.values()))
    if queue.settings.history is History.FULL:
        record_events(tx, ids, JobState.QUEUED, ENTERED)


def _wake(tx: Transaction, growing: Sequence[Growth]) -> None:
    """Note how far the lanes reach now, and wake their idle cursors. New lanes come into being."""
    new = [growth for growth in growing if growth.lane.new]
    if new:
        _create(tx, sorted(new, key=lambda growth: growth.lane.id))
    now, tidy_at = tx.now, tx.now + TIDY_REST
    grown, untidy, keyed, opened, full = [], [], [], [], []
    for queue, lane, kind, priority, expires, group_id in growing:
        if lane.new:
            lane.new = False
            continue
        grown.append((lane.id, lane.tail, lane.entered_at))
        if lane.tidy_at is None or lane.tidy_at > tidy_at:
            untidy.append(lane.id)
        if lane.key is None:
            opened.append((lane.id, kind, priority, lane.entered_at, group_id))
            continue
        keyed.append((lane.id, kind, priority, lane.entered_at, expires, group_id, now, lane.tail, WINDOW_FULL))
        if queue.settings.window:
            full.append((lane.id, lane.tail, WINDOW_FULL))
    tx.many(SQL.grow, grown)
    to_tidy(tx, untidy)
    if keyed:
        idle = {id for (id,) in tx.rows(SQL.idle_lanes, as_json([wake[0] for wake in keyed]))}
        tx.many(SQL.wake_keyed, [wake for wake in keyed if wake[0] in idle])
    tx.many(SQL.wake_full, full)
    tx.many(SQL.wake_open, opened)
    tx.hints.update(growth.queue.name for growth in growing)


def _create(tx: Transaction, new: Sequence[Growth]) -> None:
    """Write new lanes, sorted by their ids, and their cursors, which are ready; one statement for ids that count up."""
    rows: list[object] = []
    for queue, lane, *_ in new:
        rows += (lane.id, queue.id, lane.key, lane.kind, lane.priority, lane.tail, lane.entered_at)
    tx.run_wide(CREATE_LANES, (tx.now + TIDY_REST,), rows, len(new), step=None)
    begun = new[0]
    for growth, following in zip_longest(new, new[1:]):
        if following is None or following.queue.id != growth.queue.id or following.lane.id != growth.lane.id + 1:
            window = span(growth.queue.settings.window)
            tx.run(SQL.create_cursors, begun.lane.id, growth.lane.id, window, tx.now, WINDOW_FULL)
            begun = following


def headers_text(headers: object) -> str | None:
    return json.dumps(headers) if headers else None
