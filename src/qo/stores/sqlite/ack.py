"""ack_by_name: what is said about messages of keyed lanes by their names there, as other systems acknowledge.

An ack with a token is a settlement of the message that has that name in the
lease. One without is taken from anyone: the lane's unsettled messages up to that
one are seized under a lease of our own, and settled by it at once.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from uuid import UUID

from qo.core.lane import LaneId
from qo.core.lease import AckByName, Acked, LeaseToken, Settlement
from qo.core.message import TRANSACTION, MessageId, id_text
from qo.core.outcome import NamedMessage, Standing
from qo.stores.acks import ACK_LEASE, BEFORE, LOST, STALE_BEFORE, UNKNOWN, answered, lowest, strongest
from qo.stores.sealing import Stored, shown
from qo.stores.sqlite.advance import lapse_whole
from qo.stores.sqlite.cursors import Cursor, cursor_by_id, cursor_in
from qo.stores.sqlite.lanes import Lane, LaneName, find_lane
from qo.stores.sqlite.leases import LeaseRow, end_lease, read_lease
from qo.stores.sqlite.moments import maybe_moment, moment, span
from qo.stores.sqlite.places import row_of
from qo.stores.sqlite.settle import settle
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("ack")
DEDUPE = statements("dedupe")
CLAIM = statements("claim")

Source = tuple[str, str, str, LeaseToken | None]
"""Queue, key, group and token: what is judged together."""


def ack_by_name(tx: Transaction, acks: Sequence[AckByName]) -> list[Acked]:
    sources: dict[Source, list[int]] = {}
    for number, each in enumerate(acks):
        sources.setdefault((each.queue, each.key, each.group, each.token), []).append(number)
    answers: list[Acked] = [UNKNOWN] * len(acks)
    for source, numbers in sources.items():
        items = [acks[number] for number in numbers]
        for number, answer in zip(numbers, _ack_lane(tx, source, items), strict=True):
            answers[number] = answer
    for number, each in enumerate(acks):
        if answers[number] is UNKNOWN and each.token is not None:
            answers[number] = _ack_open(tx, each)
    return answers


def _ack_open(tx: Transaction, said: AckByName) -> Acked:
    """A message without a key, which our own wire pushed, goes by its id; there is no progress to move, only itself."""
    row, queue = _row_by_id(tx, said.name), tx.queue(said.queue)
    place = None if row is None or queue is None else tx.row(SQL.open_place, row, queue.id)
    if place is None or said.token is None:
        return UNKNOWN
    item = Settlement(token=said.token, lane=LaneId(place[0]), offset=place[1], report=said.report)
    return answered(settle(tx, (item,))[0])


def _row_by_id(tx: Transaction, name: str) -> int | None:
    try:
        return row_of(tx, MessageId(UUID(name).bytes))
    except ValueError:
        return None


def _ack_lane(tx: Transaction, source: Source, items: list[AckByName]) -> list[Acked]:
    queue_name, key, group, token = source
    queue = tx.queue(queue_name)
    lane = None if queue is None else find_lane(tx, queue, LaneName(key, None, None))
    group_id = None if queue is None else tx.group_id(queue, group)
    if queue is None or lane is None or group_id is None:
        return [UNKNOWN] * len(items)
    cursor = _up_to_date(tx, queue, lane, group_id)
    held = _live_lease(tx, cursor)
    passed_to = cursor.position if held is None else held.from_offset
    own = None if token is None else _lease_of(tx, token, lane, group_id)
    stale = token is not None and (own is None or not own.holds(tx.now))
    names = Names(tx, queue, lane, own, passed_to)
    found = {item.name: names.find(item.name) for item in items}
    answers: dict[int, Acked] = {}
    offsets: dict[int, int] = {}
    for number, item in enumerate(items):
        offset = found[item.name]
        if offset is None:
            answers[number] = UNKNOWN
        elif offset < passed_to:
            answers[number] = STALE_BEFORE if stale else BEFORE
        elif stale:
            answers[number] = LOST
        elif own is not None and not own.covers(offset):
            answers[number] = UNKNOWN
        else:
            offsets[number] = offset
    if offsets:
        proof = token if token is not None else _seized(tx, cursor, held, max(offsets.values()))
        reports = strongest((offset, items[number].report) for number, offset in offsets.items())
        settled = settle(
            tx,
            tuple(
                Settlement(token=proof, lane=LaneId(lane.id), offset=offset, report=report)
                for offset, report in reports.items()
            ),
        )
        by_offset = dict(zip(reports, settled, strict=True))
        answers |= {number: answered(by_offset[offset]) for number, offset in offsets.items()}
    return [answers[number] for number in range(len(items))]


def _up_to_date(tx: Transaction, queue: QueueRow, lane: Lane, group_id: int) -> Cursor:
    """The group's cursor, after a lease that has run out was given back."""
    cursor = cursor_in(tx, lane.id, group_id)
    assert cursor is not None
    lost = next((each for each in _leases(tx, cursor) if each.expires_at <= tx.now), None)
    if lost is not None:
        lapse_whole(tx, queue, lost)
        cursor = cursor_by_id(tx, cursor.id)
    return cursor


def _leases(tx: Transaction, cursor: Cursor) -> list[LeaseRow]:
    return [read_lease(row) for row in tx.rows(statements("tidy").live_leases, cursor.id)]


def _live_lease(tx: Transaction, cursor: Cursor) -> LeaseRow | None:
    return next(iter(_leases(tx, cursor)), None)


class OwnLease:
    """The lease that the token of an ack names, whatever became of it."""

    def __init__(self, first: int, last: int, expires_at: int, ended: bool) -> None:
        self.first, self.last = first, last
        self._expires_at, self._ended = expires_at, ended

    def holds(self, now: int) -> bool:
        return not self._ended and now < self._expires_at

    def covers(self, offset: int) -> bool:
        return self.first <= offset < self.last


def _lease_of(tx: Transaction, token: str, lane: Lane, group_id: int) -> OwnLease | None:
    row = tx.row(SQL.lease, token, lane.id, group_id)
    return None if row is None else OwnLease(row[0], row[1], row[2], row[3] is not None)


class Names:
    """Where in a lane the messages of these names are. Under a lease, those of that lease, if there are any."""

    def __init__(self, tx: Transaction, queue: QueueRow, lane: Lane, own: OwnLease | None, unsettled: int) -> None:
        self._tx, self._queue, self._lane = tx, queue, lane
        self._own, self._unsettled = own, unsettled
        self._leased: dict[str, list[int]] | None = None

    def find(self, name: str) -> int | None:
        offset = _by_name(self._tx, self._queue, self._lane, name)
        if self._own is None or not self._is_doubtful(offset):
            return offset
        known = self._in_lease().get(name)
        return offset if known is None else lowest(known, self._unsettled)

    def _is_doubtful(self, offset: int | None) -> bool:
        """Whether the lease may hold another of that name: the newest is not in it, or its name was given again."""
        assert self._own is not None
        if offset is None or not self._own.covers(offset):
            return True
        entered = (self._tx.value(SQL.entered_at, self._lane.id, each) for each in (self._own.first, offset))
        first, last = entered
        return bool(first is None or last - first >= span(self._queue.settings.dedupe_window))

    def _in_lease(self) -> dict[str, list[int]]:
        """Read once, however many names are asked for."""
        if self._leased is None:
            assert self._own is not None
            self._leased = {}
            for place, headers in self._tx.rows(SQL.headers, self._lane.id, self._own.first, self._own.last):
                self._leased.setdefault(json.loads(headers).get(TRANSACTION, ""), []).append(place)
        return self._leased


def _by_name(tx: Transaction, queue: QueueRow, lane: Lane, name: str) -> int | None:
    """By its name, or by its id: our own wire gives no names."""
    holder = tx.row(DEDUPE.holder, queue.id, f"key:{lane.key}", name)
    row = _row_by_id(tx, name) if holder is None else row_of(tx, holder[0])
    place = None if row is None else tx.row(DEDUPE.place, row)
    return None if place is None or place[0] != lane.id else place[1]


def _seized(tx: Transaction, cursor: Cursor, held: LeaseRow | None, offset: int) -> LeaseToken:
    """The token of a lease over the lane's unsettled messages up to this one, whoever held them."""
    if held is not None and offset < held.to_offset:
        return LeaseToken(held.token)
    start = cursor.position if held is None else held.from_offset
    if held is not None:
        end_lease(tx, held, tx.now)
    token = LeaseToken(f"ack-{secrets.token_hex(16)}")
    tx.run(
        CLAIM.lease, token, cursor.lane.id, cursor.id, cursor.group_id, start, offset + 1, None, None, None, None,
        tx.now, tx.now + span(ACK_LEASE),
    )  # fmt: skip
    tx.run(CLAIM.hold, cursor.id, offset + 1)
    return token


def named_message(tx: Transaction, queue_name: str, key: str, name: str) -> NamedMessage | None:
    """A message by its name in a lane, and how far each group is with it."""
    queue = tx.queue(queue_name)
    lane = None if queue is None else find_lane(tx, queue, LaneName(key, None, None))
    offset = None if queue is None or lane is None else _by_name(tx, queue, lane, name)
    if queue is None or lane is None or offset is None:
        return None
    row = tx.row(CLAIM.message, lane.id, offset)
    assert row is not None
    _, id, kind, _, payload, headers, created_at, *_ = row
    stored = Stored(queue_name, key, None, payload, json.loads(headers) if headers else {})
    payload, said = shown(tx.opening_key, stored)
    standings = []
    for group, claimed_at, position, attempts, start, end, expires_at in tx.rows(SQL.standings, lane.id):
        held = start is not None and start <= offset < end and expires_at > tx.now
        passed = offset < (position if start is None else start)
        standings.append(
            Standing(
                group=group,
                known=claimed_at is not None,
                passed=passed,
                attempts=attempts if offset in (position, start) else 0,
                lease_expires_at=maybe_moment(expires_at) if held else None,
            )
        )
    return NamedMessage(
        id=id_text(id),
        queue=queue_name,
        key=key,
        offset=offset,
        kind=kind,
        payload=payload,
        headers=said,
        created_at=moment(created_at),
        standings=tuple(standings),
    )
