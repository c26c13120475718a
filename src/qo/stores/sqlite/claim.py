"""claim: lease ready messages, higher priority first, then oldest head.

A want is served from one or more fronts, a front being a group in a queue. The
best lane of all fronts is taken from first, as far as the want has room, then
the next best.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qo.core.fate import FRAGILE_LOSSES
from qo.core.lease import Claimed, Nothing, Want
from qo.core.names import DEFAULT_GROUP
from qo.stores.answers import used_token
from qo.stores.sealing import WITHOUT_KEY, UnknownKey
from qo.stores.sqlite.advance import advance, next_moment
from qo.stores.sqlite.groups import join, matching, note_filter
from qo.stores.sqlite.lanes import cursor_by_id, queue_to_use
from qo.stores.sqlite.moments import maybe_moment, moment, span
from qo.stores.sqlite.queues import note_default_claim
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.take import Front, Haul, take
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("claim")
log = logging.getLogger("qo.sqlite")


class Candidate(NamedTuple):
    """A lane that has something, in the order in which lanes are taken from."""

    queue_rank: int
    rank: int
    entered_at: int
    lane_id: int
    cursor_id: int
    front: Front


def claim(tx: Transaction, wants: tuple[Want, ...]) -> list[Claimed | Nothing]:
    return [_serve(tx, want) for want in wants]


def claim_on(tx: Transaction, wants: tuple[Want, ...]) -> list[Claimed | Nothing]:
    """Claim after a settle, which must not be undone because this process has not got a message's key."""
    return [_served_or_undone(tx, want) for want in wants]


def _served_or_undone(tx: Transaction, want: Want) -> Claimed | Nothing:
    tx.run("SAVEPOINT claim_on")
    try:
        answer = _serve(tx, want)
    except UnknownKey as error:
        log.warning("could not claim: %s", error)
        tx.run("ROLLBACK TO claim_on")
        tx.forget_queues()
        answer = Nothing(moment(tx.now + span(WITHOUT_KEY)))
    tx.run("RELEASE claim_on")
    return answer


def _serve(tx: Transaction, want: Want) -> Claimed | Nothing:
    if want.named and tx.value(SQL.is_used, want.token) is not None:
        raise used_token()
    fronts = [front for front in _fronts(tx, want) if not front.queue.paused]
    more = False
    for front in fronts:
        more |= advance(tx, front.queue, front.group_id)
    haul = Haul(tx, want)
    while haul.room > 0 and (candidates := _candidates(tx, fronts, haul)):
        for candidate in candidates:
            before = (haul.may_take_fragile, len(haul.deliveries))
            take(tx, candidate.front, cursor_by_id(tx, candidate.cursor_id), haul)
            if haul.room <= 0 or before[0] != haul.may_take_fragile or before[1] == len(haul.deliveries):
                break  # full; or lanes look different now; or one gave nothing, and a better one may not be listed
    if haul.deliveries:
        return Claimed(tuple(haul.deliveries))
    ask_again = maybe_moment(tx.now if more else _ask_again(tx, fronts, haul))
    return Nothing(ask_again, haul.met_fragile, more)


def _fronts(tx: Transaction, want: Want) -> Iterator[Front]:
    names: Sequence[str] = want.queues
    if want.filter is not None:
        names = matching(tx, want.filter)
        if want.group != DEFAULT_GROUP:
            note_filter(tx, want.filter, want.group, want.start)
    for name in dict.fromkeys(names):
        queue = tx.queue(name)
        if queue is None:
            if want.group == DEFAULT_GROUP:
                continue
            queue = queue_to_use(tx, name, want.new_queue)
        group_id = tx.group_id(queue, want.group)
        if group_id is None:
            group_id = join(tx, queue, want.group, want.start)
        if tx.run(SQL.claimed_now, group_id, tx.now) and want.group == DEFAULT_GROUP:
            queue = note_default_claim(tx, queue)
        yield Front(queue, group_id)


def _ask_again(tx: Transaction, fronts: list[Front], haul: Haul) -> int | None:
    """The earliest moment at which time may bring something. It may be early for a want of few kinds; never late."""
    times = [next_moment(tx, front.queue, front.group_id) for front in fronts]
    if haul.met_fragile:
        times.append(tx.value(SQL.fragile_of_owner, haul.want.owner, tx.now))
        times += [tx.value(SQL.later_retry, front.group_id, tx.now) for front in fronts]
    return min((time for time in times if time is not None), default=None)


def _candidates(tx: Transaction, fronts: list[Front], haul: Haul) -> list[Candidate]:
    limit = haul.room if haul.want.lanes is None else min(haul.room, haul.want.lanes - len(haul.lanes))
    found: dict[int, Candidate] = {}
    for front in fronts:
        own = front.queue.settings.priority
        for row in _ready(tx, front, haul, limit + len(haul.passed_over)):
            found[row[3]] = Candidate(-own, -row[0], row[1], row[2], row[3], front)
        for row in _with_due_retries(tx, front, haul):
            found[row[3]] = Candidate(-own, -row[0], row[1], row[2], row[3], front)
    return sorted(candidate for candidate in found.values() if candidate.cursor_id not in haul.passed_over)


def _ready(tx: Transaction, front: Front, haul: Haul, limit: int) -> list[Row]:
    want = haul.want
    if want.key is not None:
        rows = tx.rows(SQL.ready_of_key, front.queue.id, want.key, front.group_id)
        return [row for row in rows if want.kinds is None or row[4] in want.kinds]
    if want.kinds is None:
        return tx.rows(SQL.ready, front.group_id, limit)
    return [row for kind in want.kinds for row in tx.rows(SQL.ready_of_kind, front.group_id, limit, kind)]


def _with_due_retries(tx: Transaction, front: Front, haul: Haul) -> list[Row]:
    want = haul.want
    if want.key is not None:
        return []
    rows = tx.rows(SQL.due_retries, front.group_id, tx.now, FRAGILE_LOSSES, haul.may_take_fragile)
    rows = [row for row in rows if want.kinds is None or row[4] in want.kinds]
    haul.met_fragile |= not haul.may_take_fragile and any(row[1] is None for row in rows)
    return [row for row in rows if row[1] is not None]
