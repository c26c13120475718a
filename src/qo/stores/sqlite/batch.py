"""What one want has got so far: lanes that were read ahead, what is delivered, and what is to be written down."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import apsw

from qo.core.lease import Delivered, Want
from qo.stores.idempotency import used_token
from qo.stores.sqlite.cursors import Cursor, Rest, read_cursor, rest_all
from qo.stores.sqlite.leases import offsets_text
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.statements import CURSOR_WIDTH, as_json, statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction

SQL = statements("claim")
AHEAD_MESSAGES = 3
"""So many messages of each lane are read beside others: more would repeat what a row says of its lane too often."""


class Source(NamedTuple):
    """A group in a queue."""

    queue: QueueRow
    group_id: int


def expires_at(tx: Transaction, source: Source, want: Want) -> int:
    return tx.now + span(want.lease if want.lease is not None else source.queue.settings.lease)


def size_of(message: Row) -> int:
    """How much of an answer a message takes."""
    return len(message[4]) + len(message[5] or "")


class Part(NamedTuple):
    """What a lease holds of a lane: a range, what of it is settled already, and retries that are claimed with it."""

    start: int
    end: int
    settled: int = 0
    retried: Sequence[int] = ()
    fragile: int | None = None


class Ahead(NamedTuple):
    """A keyed lane as a claim read it beside others: the cursor, messages from its position on, and if it has skips."""

    cursor: Cursor
    messages: list[Row]
    skips: bool


class Batch:
    """What one want has got so far, and what it still has room for."""

    def __init__(self, tx: Transaction, want: Want) -> None:
        self.want = want
        self.deliveries: list[Delivered] = []
        self.lanes: set[int] = set()
        self.passed_over: set[int] = set()
        self.may_take_fragile = want.owner is None or tx.value(SQL.fragile_of_owner, want.owner, tx.now) is None
        self.met_fragile = False
        self.bytes_left = want.max_bytes
        self.ahead: dict[int, Ahead] = {}
        self._leases: list[tuple[object, ...]] = []
        self._holds: list[tuple[int, int]] = []
        self._rests: list[Rest] = []

    @property
    def room(self) -> int:
        if self.deliveries and self.bytes_left <= 0:
            return 0
        if self.want.lanes is not None and len(self.lanes) >= self.want.lanes:
            return 0
        return self.want.messages - len(self.deliveries)

    @property
    def run_room(self) -> int:
        """How many messages one run of a keyed lane may have."""
        return min(self.room, self.want.lane_messages or self.room)

    def lease(self, tx: Transaction, source: Source, cursor: Cursor, part: Part) -> None:
        """Hold a part of a lane for the want."""
        want = self.want
        settled = part.settled.to_bytes((part.settled.bit_length() + 7) // 8, "little") if part.settled else None
        retried = offsets_text(part.retried)
        self._leases.append((
            want.token, cursor.lane.id, cursor.id, cursor.group_id, part.start, max(part.start, part.end), settled,
            retried, part.fragile, want.owner, tx.now, expires_at(tx, source, want),
        ))  # fmt: skip

    def hold(self, cursor: Cursor, end: int) -> None:
        """A keyed cursor is leased up to here."""
        self._holds.append((cursor.id, end))

    def bring_to_rest(self, coming: Rest) -> None:
        self._rests.append(coming)

    def write(self, tx: Transaction) -> None:
        """Write down what was taken: few statements, however many lanes there are."""
        try:
            tx.many(SQL.lease, self._leases)
        except apsw.ConstraintError:
            raise used_token() from None
        tx.many(SQL.hold, self._holds)
        rest_all(tx, self._rests)
        self._leases, self._holds, self._rests = [], [], []


def read_ahead(tx: Transaction, cursor_ids: Sequence[int], batch: Batch) -> None:
    """Read the keyed lanes that a claim is about to take from, no more of them than it has room for.

    Of a lane that has many messages the first few are read here, and the others when they are taken.
    """
    ahead = batch.ahead
    unread = [id for id in cursor_ids if id not in ahead]
    room = batch.room - sum(_depth(each.cursor, batch) for each in ahead.values())
    left = batch.bytes_left - sum(map(size_of, chain.from_iterable(each.messages for each in ahead.values())))
    if not unread or room <= 0 or left <= 0:
        return
    for row in tx.each(SQL.read_ahead, as_json(unread), min(batch.run_room, AHEAD_MESSAGES)):
        id, message = row[0], row[CURSOR_WIDTH + 1 :]
        if id not in ahead:
            if room <= 0 or left <= 0:
                return
            lane = ahead[id] = Ahead(read_cursor(row[:CURSOR_WIDTH]), [], bool(row[CURSOR_WIDTH]))
            room -= _depth(lane.cursor, batch)
        ahead[id].messages.append(message)
        left -= size_of(message)


def _depth(cursor: Cursor, batch: Batch) -> int:
    """How many messages a keyed lane may give at most."""
    return 1 if cursor.losses else min(batch.run_room, cursor.lane.tail - cursor.position)
