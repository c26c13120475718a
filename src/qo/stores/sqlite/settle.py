"""settle: what became of claimed messages.

The items of one call are judged lease by lease. On a keyed lane they are judged
together, as one report on a run; on an open lane one by one. Everything that a
token settled is written down, so that saying it again is answered `repeated`
with the first verdict, also after the lease has ended.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from qo.core.fate import Again, Back, Completed, Dead
from qo.core.keyed_lanes import NOTHING, Run, RunChange, settle_run
from qo.core.lease import Answer, Report, Settled, Settlement, Verdict
from qo.core.open_lanes import OpenDecided, Tries, settle_open
from qo.stores.sqlite import outcomes
from qo.stores.sqlite.cursors import Cursor, Rest, follow_retries, read_cursor, rest_all
from qo.stores.sqlite.leases import LeaseRow, end_leases, read_lease
from qo.stores.sqlite.moments import micros
from qo.stores.sqlite.outcomes import Ends, Finish, canceled_ends, finish_all, finish_of, verdict_of
from qo.stores.sqlite.statements import as_json, statements
from qo.stores.sqlite.transaction import QueueRow, Row, Transaction

SQL = statements("settle")
TIME = statements("advance")

UNKNOWN = Settled(Answer.UNKNOWN, None, True)


@dataclass(slots=True)
class Held:
    """A lease under judgement: its row, where it stands, and what this call makes of it."""

    lease: LeaseRow
    last: int
    ended: bool
    fragile: int | None
    queue: QueueRow
    cursor: Cursor
    skips: bool
    verdicts: dict[int, Verdict]
    finishes: list[Finish]


class Changes:
    """What the settlements of one call make of their leases: written at once, however many lanes there are."""

    def __init__(self) -> None:
        self._ends: list[Ends] = []
        self._verdicts: list[tuple[str, int, int, str]] = []
        self._ended: list[LeaseRow] = []
        self._kept: list[tuple[object, ...]] = []
        self._rests: list[Rest] = []

    def note(self, held: Held) -> None:
        """What this call settled, and what is left of the lease."""
        if not held.verdicts:
            return
        lease, cursor = held.lease, held.cursor
        if held.finishes:
            self._ends.append(Ends(held.queue, cursor.group_id, cursor.lane.id, held.finishes))
        self._verdicts.append((lease.token, lease.lane_id, min(held.verdicts), as_json(_ranges(held.verdicts))))
        if held.ended:
            self._ended.append(lease)
        else:
            bits = None if cursor.lane.keyed else lease.settled_bytes()
            self._kept.append((lease.token, lease.lane_id, lease.from_offset, lease.to_offset, bits, held.fragile))

    def bring_to_rest(self, coming: Rest) -> None:
        self._rests.append(coming)

    def write(self, tx: Transaction) -> None:
        finish_all(tx, self._ends)
        tx.many(SQL.record, self._verdicts)
        end_leases(tx, self._ended, tx.now)
        tx.many(SQL.keep, self._kept)
        rest_all(tx, self._rests)


def settle(tx: Transaction, settlements: tuple[Settlement, ...]) -> list[Settled]:
    by_lease: dict[tuple[str, int], list[int]] = {}
    for number, item in enumerate(settlements):
        by_lease.setdefault((item.token, item.lane), []).append(number)
    answers: list[Settled] = [UNKNOWN] * len(settlements)
    changes = Changes()
    for row in tx.rows(SQL.leases, as_json(list(by_lease))):
        numbers = by_lease[row[0], row[1]]
        items = [settlements[number] for number in numbers]
        for number, answer in zip(numbers, _settle_lease(tx, row, items, changes), strict=True):
            answers[number] = answer
    changes.write(tx)
    return answers


def _settle_lease(tx: Transaction, row: Row, items: list[Settlement], changes: Changes) -> list[Settled]:
    lease = read_lease(row[:12])
    last, ended_at, fragile, queue_name, skips, *cursor = row[12:]
    if ended_at is not None or lease.expires_at <= tx.now:
        return [_after_the_end(tx, lease, last, item.offset) for item in items]
    held = Held(
        lease, last, False, fragile, tx.existing_queue(queue_name), read_cursor(tuple(cursor)), bool(skips), {}, []
    )
    for item in items:
        if item.started_at is not None:
            lease.started[item.offset] = micros(item.started_at)
    keyed = held.cursor.lane.keyed
    answer_one = _settle_run(tx, held, items, changes) if keyed else _settle_open(tx, held, items)
    if held.ended and held.fragile is not None:
        tx.hint_everyone = True  # its owner may now take another such message, in any queue
    changes.note(held)
    return [answer_one(item, first) for item, first in _with_firsts(items)]


def _with_firsts(items: list[Settlement]) -> list[tuple[Settlement, bool]]:
    """Each item, and whether it is the first of this call about its message."""
    if len(items) == 1:
        return [(items[0], True)]
    seen: set[int] = set()
    marked = []
    for item in items:
        marked.append((item, item.offset not in seen))
        seen.add(item.offset)
    return marked


def _after_the_end(tx: Transaction, lease: LeaseRow, last: int, offset: int) -> Settled:
    """The lease has ended: what it settled is repeated, what it did not is lost, what it never had is unknown."""
    verdict = _first_verdict(tx, lease, offset)
    if verdict is not None:
        return Settled(Answer.REPEATED, verdict, True)
    known = lease.first <= offset < last or offset in lease.retried
    return Settled(Answer.LOST if known else Answer.UNKNOWN, None, True)


def _first_verdict(tx: Transaction, lease: LeaseRow, offset: int) -> Verdict | None:
    for (text,) in tx.rows(SQL.verdicts, lease.token, lease.lane_id):
        for start, end, verdict in json.loads(text):
            if start <= offset < end:
                return Verdict(verdict)
    return None


AnswerOne = Callable[[Settlement, bool], Settled]


def _settle_run(tx: Transaction, held: Held, items: list[Settlement], changes: Changes) -> AnswerOne:
    """Judge a keyed lane's run as a whole."""
    lease, cursor = held.lease, held.cursor
    start, end = lease.from_offset, lease.to_offset
    skips: set[int] = set()
    if held.skips:
        skips.update(offset for (offset,) in tx.rows(TIME.skips_between, cursor.id, start, end))
    reports: dict[int, Report] = {}
    for item in items:
        if start <= item.offset < end and item.offset not in skips:
            reports.setdefault(item.offset, item.report)
    if reports:
        run = Run(
            start=start,
            end=end,
            attempts=cursor.attempts,
            losses=cursor.losses,
            skips=frozenset(skips) if skips else NOTHING,
            canceled=frozenset(lease.canceled) if lease.canceled else NOTHING,
        )
        expired = partial(_is_expired, tx, cursor.lane.id)
        _write_run(tx, held, changes, settle_run(run, reports, held.queue.settings, tx.time, tx.draw(), expired))

    def answer(item: Settlement, first: bool) -> Settled:
        verdict = held.verdicts.get(item.offset)
        if item.offset in reports:
            if verdict is None:
                return Settled(Answer.GIVEN_BACK, None, held.ended)
            return Settled(Answer.SETTLED if first else Answer.REPEATED, verdict, held.ended)
        if start <= item.offset < end:
            return Settled(Answer.UNKNOWN, None, held.ended)
        before = _after_the_end(tx, lease, held.last, item.offset)
        return Settled(before.answer, before.verdict, held.ended)

    return answer


def _is_expired(tx: Transaction, lane_id: int, offset: int) -> bool:
    life = tx.value(TIME.expires_at, lane_id, offset)
    return life is not None and life <= tx.now


def _write_run(tx: Transaction, held: Held, changes: Changes, change: RunChange) -> None:
    """Write down what a call made of a run."""
    lease, cursor = held.lease, held.cursor
    for offset, fate, attempt in change.decided:
        held.verdicts[offset] = verdict_of(fate)
        finish = finish_of(offset, fate, attempt, lease.owner, lease.started.get(offset))
        if finish is not None:
            held.finishes.append(finish)
        if isinstance(fate, Dead):
            outcomes.bury(tx, cursor.group_id, cursor.lane.id, offset, fate)
        elif isinstance(fate, Again):
            _note_failure(tx, held, offset, fate)
    for offset in (*change.skips, *change.canceled):
        tx.run(TIME.skip, cursor.id, offset)
    if change.canceled:
        held.finishes += canceled_ends(change.canceled, lease.owner)
    if change.lease is None:
        held.ended = True
        blocked_until = None if change.blocked_until is None else micros(change.blocked_until)
        skips = held.skips or bool(change.skips or change.canceled)
        changes.bring_to_rest(Rest(cursor, change.rest_at, change.attempts, change.losses, blocked_until, skips))
        tx.hint(held.queue.name)
        return
    start, end = change.lease
    if start > lease.from_offset:
        tx.run(SQL.moved_head, cursor.id)
        held.fragile = None
    if end < lease.to_offset:
        tx.run("UPDATE cursors SET position = ?2 WHERE id = ?1", cursor.id, end)
    lease.from_offset, lease.to_offset = start, end


def _settle_open(tx: Transaction, held: Held, items: list[Settlement]) -> AnswerOne:
    """Judge an open lane's messages one by one, in any order."""
    lease, cursor = held.lease, held.cursor
    rows = tx.rows(TIME.claimed_retries, cursor.id, lease.token) if lease.retried else []
    retries = {offset: Tries(attempts, losses) for offset, attempts, losses in rows}
    start, end = lease.from_offset, lease.to_offset
    decided = settle_open(
        ((item.offset, item.report) for item in items),
        lambda offset: start <= offset < end and not lease.is_marked(offset),
        retries,
        lease.canceled,
        held.queue.settings,
        tx.time,
        tx.draw,
        partial(_is_expired, tx, cursor.lane.id),
    )
    for each in decided:
        _write_open(tx, held, each)
    if any(not each.fresh or not isinstance(each.fate, Completed) for each in decided):
        follow_retries(tx, cursor.id)
        tx.hint(held.queue.name)
    left = len(retries) - sum(not each.fresh for each in decided)
    size = lease.to_offset - lease.from_offset
    held.ended = not left and lease.settled.bit_count() >= size

    def answer(item: Settlement, first: bool) -> Settled:
        verdict = held.verdicts.get(item.offset)
        if verdict is not None:
            return Settled(Answer.SETTLED if first else Answer.REPEATED, verdict, held.ended)
        verdict = _first_verdict(tx, lease, item.offset)
        return Settled(Answer.UNKNOWN if verdict is None else Answer.REPEATED, verdict, held.ended)

    return answer


def _write_open(tx: Transaction, held: Held, decided: OpenDecided) -> None:
    """Write down what becomes of one message of an open lane."""
    cursor, (offset, fate, attempt, fresh) = held.cursor, decided
    held.verdicts[offset] = verdict_of(fate)
    if fresh:
        held.lease.mark(offset)
    if held.fragile == offset:
        held.fragile = None
        tx.hint_everyone = True
    match fate:
        case Again(at=at, attempts=used, losses=lost):
            _wait(tx, cursor, offset, used, lost, micros(at), fresh=fresh)
            _note_failure(tx, held, offset, fate)
        case Back(attempts, losses):
            _wait(tx, cursor, offset, attempts, losses, tx.now, fresh=fresh)
        case _:
            if not fresh:
                tx.run(TIME.drop_retry, cursor.id, offset)
            if isinstance(fate, Dead):
                outcomes.bury(tx, cursor.group_id, cursor.lane.id, offset, fate)
            finish = finish_of(offset, fate, attempt, held.lease.owner, held.lease.started.get(offset))
            if finish is not None:
                held.finishes.append(finish)


def _wait(tx: Transaction, cursor: Cursor, offset: int, attempts: int, losses: int, due: int, *, fresh: bool) -> None:
    if fresh:
        tx.run(TIME.add_retry, cursor.id, offset, attempts, losses, due, cursor.lane.id)
    else:
        tx.run(TIME.give_back_retry, cursor.id, offset, attempts, losses, due)


def _note_failure(tx: Transaction, held: Held, offset: int, again: Again) -> None:
    cursor, lease = held.cursor, held.lease
    started_at = lease.started.get(offset)
    outcomes.note_failure(tx, held.queue, cursor.group_id, cursor.lane.id, offset, again, lease.owner, started_at)


def _ranges(verdicts: Mapping[int, Verdict]) -> list[tuple[int, int, Verdict]]:
    """Verdicts by offset, as ranges."""
    if len(verdicts) == 1:
        [(offset, verdict)] = verdicts.items()
        return [(offset, offset + 1, verdict)]
    steps = enumerate(sorted(verdicts.items()))
    runs = groupby(steps, key=lambda step: (step[1][0] - step[0], step[1][1]))
    found = []
    for (_, verdict), run in runs:
        offsets = [offset for _, (offset, _) in run]
        found.append((offsets[0], offsets[-1] + 1, verdict))
    return found
