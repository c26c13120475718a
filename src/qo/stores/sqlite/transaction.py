"""What a verb works with: one open transaction, its time, and what it will tell the world."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import apsw

from qo.core.errors import NotFound
from qo.core.message import MessageId
from qo.core.names import DEFAULT_GROUP
from qo.core.queue import QueueSettings
from qo.stores.sealing import SealingKey
from qo.stores.sqlite.moments import moment
from qo.stores.sqlite.statements import wide

Row = tuple[Any, ...]


WIDE_ROWS = 40

Wide = Mapping[int, str]
"""A statement for each number of rows from 1 to WIDE_ROWS."""


def widened(sql: str, shared: int) -> Wide:
    return {rows: wide(sql, shared, rows) for rows in range(1, WIDE_ROWS + 1)}


class QueueRow(NamedTuple):
    id: int
    name: str
    settings: QueueSettings
    paused: bool
    default_group_id: int


class Keyring(Protocol):
    """The keys that payloads are sealed with."""

    def to_seal(self, tx: Transaction) -> SealingKey: ...

    def to_open(self, tx: Transaction, id: str) -> bytes: ...

    unreadable: int


class Transaction:
    """One transaction. Reads and writes go through here; so do hints, sent only if it commits."""

    def __init__(
        self,
        connection: apsw.Connection,
        now: int,
        draw: Callable[[], float],
        watched: AbstractSet[MessageId],
        careful: bool,
        queues: dict[str, QueueRow],
        keys: Keyring,
    ) -> None:
        self.now = now
        self.draw = draw
        self.careful = careful
        self.watched = watched
        self.hints: set[str] = set()
        self.hint_everyone = False
        self.finished: set[MessageId] = set()
        self.changed_records: set[str] = set()
        self.newest: Row | None = None  # row, lane and offset of the log's newest message, once known
        self.last_lane: int | None = None  # the id of the newest lane, once known
        self._connection = connection
        self._execute = connection.execute
        self._queues = queues
        self._keys = keys

    @property
    def time(self) -> datetime:
        return moment(self.now)

    def row(self, sql: str, *values: Any) -> Row | None:
        found: Row | None = self._execute(sql, values).fetchone()
        return found

    def rows(self, sql: str, *values: Any) -> list[Row]:
        found: list[Row] = self._execute(sql, values).fetchall()
        return found

    def each(self, sql: str, *values: Any) -> Iterator[Row]:
        """Rows as they are asked for: whoever stops early has not read the rest."""
        found: Iterator[Row] = self._execute(sql, values)
        return found

    def value(self, sql: str, *values: Any) -> Any:
        found = self._execute(sql, values).fetchone()
        return None if found is None else found[0]

    def run(self, sql: str, *values: Any) -> int:
        """Write; answers how many rows changed."""
        self._execute(sql, values)
        return self._connection.changes()

    def insert(self, sql: str, *values: Any) -> int:
        """Write one row; answers its rowid."""
        self._execute(sql, values)
        return self._connection.last_insert_rowid()

    def many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._connection.executemany(sql, rows)

    def run_wide(
        self, statement: Wide, shared: Sequence[Any], own: Sequence[Any], count: int, step: int | None
    ) -> None:
        """Insert `count` rows, many to a statement. `own` has each row's values one after another.

        `step` names the shared value that counts up row by row, if one does.
        """
        per_row = len(own) // count
        fixed = list(shared)
        for start in range(0, count, WIDE_ROWS):
            rows = min(WIDE_ROWS, count - start)
            if step is not None:
                fixed[step] = shared[step] + start
            self._execute(statement[rows], (*fixed, *own[start * per_row : (start + rows) * per_row]))

    def sealing_key(self) -> SealingKey:
        """The key that payloads are sealed with now."""
        return self._keys.to_seal(self)

    def opening_key(self, id: str) -> bytes:
        return self._keys.to_open(self, id)

    def note_unreadable(self) -> None:
        self._keys.unreadable += 1

    def hint(self, queue: str) -> None:
        self.hints.add(queue)

    def hint_records(self, kind: str) -> None:
        self.changed_records.add(kind)

    def savepoint(self) -> apsw.Connection:
        """A context manager: leaving it by an error undoes what was written inside."""
        return self._connection

    def queue(self, name: str) -> QueueRow | None:
        """The queue of that name; read once, and kept as long as nobody else writes."""
        known = self._queues.get(name)
        if known is None:
            row = self.row(_QUEUE, name)
            if row is None:
                return None
            known = self._queues[name] = QueueRow(row[0], name, read_settings(row[1]), bool(row[2]), row[3])
        return known

    def existing_queue(self, name: str) -> QueueRow:
        queue = self.queue(name)
        if queue is None:
            raise NotFound(f"there is no queue '{name}'")
        return queue

    def forget_queue(self, name: str) -> None:
        """Read it anew next time."""
        self._queues.pop(name, None)

    def forget(self) -> None:
        """After a part of this transaction was undone: what was created in it is gone."""
        self._queues.clear()
        self.newest = None
        self.last_lane = None

    def group_id(self, queue: QueueRow, group: str) -> int | None:
        if group == DEFAULT_GROUP:
            return queue.default_group_id
        found: int | None = self.value("SELECT id FROM groups WHERE queue_id = ? AND name = ?", queue.id, group)
        return found

    def existing_group(self, queue: QueueRow, group: str) -> int:
        found = self.group_id(queue, group)
        if found is None:
            raise NotFound(f"queue '{queue.name}' has no group '{group}'")
        return found


_QUEUE = """
SELECT q.id, q.settings, q.paused, g.id FROM queues q JOIN groups g ON g.queue_id = q.id AND g.name = 'default'
WHERE q.name = ?
"""


@lru_cache(maxsize=1024)
def read_settings(text: str) -> QueueSettings:
    return QueueSettings().changed(json.loads(text))
