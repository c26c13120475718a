"""Queues, lanes and cursors coming into being."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from qo.core.lane import Filter, Start, StartAt
from qo.core.names import DEFAULT_GROUP
from qo.core.queue import QueueSettings
from qo.core.retention import TIDY_AFTER
from qo.stores.sqlite.moments import micros, moment, span
from qo.stores.sqlite.statements import as_json, statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("lanes")

TIDY_REST = span(TIDY_AFTER)
"""A lane that changed is looked at by housekeeping a minute later, not sooner."""


@dataclass(slots=True)
class Lane:
    """A lane's row. `kind` and `priority` are an open lane's; a keyed one has a key instead.

    new       it comes into being when its first message enters
    tidy_at   when housekeeping will look at it; None: never, or not known
    """

    id: int
    key: str | None
    kind: str | None
    priority: int | None
    first: int
    tail: int
    entered_at: int
    tidy_at: int | None = None
    new: bool = False

    @property
    def keyed(self) -> bool:
        return self.key is not None

    def enters_at(self, now: int) -> int:
        """The time of entry never runs backwards in a lane, whatever the clock does."""
        return max(now, self.entered_at)


class LaneName(NamedTuple):
    """A lane's identity within its queue: by key, or by kind and priority."""

    key: str | None
    kind: str | None
    priority: int | None

    @classmethod
    def of(cls, key: str | None, kind: str, priority: int) -> LaneName:
        return cls(key, None, None) if key is not None else cls(None, kind, priority)


def queue_to_use(tx: Transaction, name: str, new: QueueSettings | None = None) -> QueueRow:
    """The queue of that name, created with these settings, or the default ones, if there is none."""
    return tx.queue(name) or create_queue(tx, name, new or QueueSettings())


def create_queue(tx: Transaction, name: str, given: QueueSettings) -> QueueRow:
    settings = given.sealed_from(tx.time)
    namespace, task = settings.names(name)
    queue_id = tx.insert(SQL.create_queue, name, namespace, task, settings_text(settings), tx.now)
    create_group(tx, queue_id, DEFAULT_GROUP, Start())
    for group, *rule, start_at, start_time in tx.rows(SQL.filters):
        if group != DEFAULT_GROUP and Filter(*rule).matches(namespace, task):
            start = Start(StartAt(start_at), None if start_time is None else moment(start_time))
            if tx.value("SELECT 1 FROM groups WHERE queue_id = ? AND name = ?", queue_id, group) is None:
                create_group(tx, queue_id, group, start)
    tx.hint(name)
    queue = tx.queue(name)
    assert queue is not None
    return queue


def create_group(tx: Transaction, queue_id: int, name: str, start: Start) -> int:
    time = None if start.time is None else micros(start.time)
    return tx.insert(SQL.create_group, queue_id, name, start.at, time, tx.now)


def find_lane(tx: Transaction, queue: QueueRow, name: LaneName) -> Lane | None:
    return lanes_found(tx, queue, (name,)).get(name)


def lanes_found(tx: Transaction, queue: QueueRow, names: Collection[LaneName]) -> dict[LaneName, Lane]:
    """Those of these lanes that there are."""
    found: dict[LaneName, Lane] = {}
    keys = [name.key for name in names if name.key is not None]
    if keys:
        found = {LaneName(key, None, None): lane for key, lane in _keyed_lanes(tx, queue, keys).items()}
    if len(keys) < len(names):
        for name in names:
            if name.key is None and (one := tx.row(SQL.open_lane, queue.id, name.kind, name.priority)):
                found[name] = Lane(*one)
    return found


def lanes_to_use(tx: Transaction, queue: QueueRow, names: Iterable[LaneName]) -> dict[LaneName, Lane]:
    """The lanes of these names. Those that are missing come into being with their first message (see `appending`)."""
    wanted = dict.fromkeys(names)
    lanes = lanes_found(tx, queue, wanted.keys())
    for name in wanted:
        if name not in lanes:
            lanes[name] = Lane(_next_lane(tx), *name, 0, 0, 0, new=True)
    return lanes


def _keyed_lanes(tx: Transaction, queue: QueueRow, keys: Collection[str]) -> dict[str, Lane]:
    return {row[1]: Lane(*row) for row in tx.rows(SQL.keyed_lanes, queue.id, as_json(keys))}


def keyed_lanes_to_use(tx: Transaction, queue: QueueRow, keys: Iterable[str]) -> dict[str, Lane]:
    """The same for the lanes of these keys."""
    wanted = list(dict.fromkeys(keys))
    lanes = _keyed_lanes(tx, queue, wanted)
    for key in wanted:
        if key not in lanes:
            lanes[key] = Lane(_next_lane(tx), key, None, None, 0, 0, 0, new=True)
    return lanes


def _next_lane(tx: Transaction) -> int:
    tx.last_lane = (tx.last_lane or tx.value(SQL.last_lane) or 0) + 1
    return tx.last_lane


def lane_to_use(tx: Transaction, queue: QueueRow, name: LaneName) -> Lane:
    return lanes_to_use(tx, queue, (name,))[name]


def to_tidy(tx: Transaction, lane_ids: Iterable[int]) -> None:
    """Have housekeeping look at lanes in a while: there may be something to remove then."""
    at = tx.now + TIDY_REST
    tx.many(SQL.to_tidy, [(id, at) for id in lane_ids])


def settings_text(settings: QueueSettings) -> str:
    return json.dumps(settings.overrides())
