"""claim: lease ready messages, higher priority first, then oldest head.

A want is served from one or more sources, a source being a group in a queue. The
best lane of all sources is taken from first, as far as the want has room, then
the next best.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from qo.core.fate import FRAGILE_LOSSES
from qo.core.lease import Claimed, Nothing, Want
from qo.core.names import DEFAULT_GROUP
from qo.stores.idempotency import used_token
from qo.stores.sealing import WITHOUT_KEY, UnknownKey
from qo.stores.sqlite.advance import advance, next_moment
from qo.stores.sqlite.batch import Ahead, Batch, Source, read_ahead
from qo.stores.sqlite.cursors import cursor_by_id
from qo.stores.sqlite.groups import join, matching, note_filter
from qo.stores.sqlite.lanes import queue_to_use
from qo.stores.sqlite.moments import maybe_moment, moment, span
from qo.stores.sqlite.queues import note_default_claim
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.take import take
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
    source: Source


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
        tx.forget()
        answer = Nothing(moment(tx.now + span(WITHOUT_KEY)))
    tx.run("RELEASE claim_on")
    return answer


def _serve(tx: Transaction, want: Want) -> Claimed | Nothing:
    if want.named and tx.value(SQL.is_used, want.token) is not None:
        raise used_token()
    sources = [source for source in _sources(tx, want) if not source.queue.paused]
    more = False
    for source in sources:
        more |= advance(tx, source.queue, source.group_id)
    batch = Batch(tx, want)
    while batch.room > 0 and (candidates := _candidates(tx, sources, batch)):
        read_ahead(tx, [candidate.cursor_id for candidate in candidates], batch)
        for candidate in candidates:
            before = (batch.may_take_fragile, len(batch.deliveries))
            take(tx, candidate.source, _lane(tx, candidate, batch), batch)
            if batch.room <= 0 or before[0] != batch.may_take_fragile or before[1] == len(batch.deliveries):
                break  # full; or lanes look different now; or one gave nothing, and a better one may not be listed
        batch.write(tx)
    if batch.deliveries:
        return Claimed(tuple(batch.deliveries))
    ask_again = maybe_moment(tx.now if more else _ask_again(tx, sources, batch))
    return Nothing(ask_again, batch.met_fragile, more)


def _lane(tx: Transaction, candidate: Candidate, batch: Batch) -> Ahead:
    return batch.ahead.pop(candidate.cursor_id, None) or Ahead(cursor_by_id(tx, candidate.cursor_id), [], True)


def _sources(tx: Transaction, want: Want) -> Iterator[Source]:
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
        yield Source(queue, group_id)


def _ask_again(tx: Transaction, sources: list[Source], batch: Batch) -> int | None:
    """The earliest moment at which time may bring something. It may be early for a want of few kinds; never late."""
    times = [next_moment(tx, source.queue, source.group_id) for source in sources]
    if batch.met_fragile:
        times.append(tx.value(SQL.fragile_of_owner, batch.want.owner, tx.now))
        times += [tx.value(SQL.later_retry, source.group_id, tx.now) for source in sources]
    return min((time for time in times if time is not None), default=None)


def _candidates(tx: Transaction, sources: list[Source], batch: Batch) -> list[Candidate]:
    limit = batch.room if batch.want.lanes is None else min(batch.room, batch.want.lanes - len(batch.lanes))
    found: dict[int, Candidate] = {}
    for source in sources:
        own = source.queue.settings.priority
        for row in _ready(tx, source, batch, limit + len(batch.passed_over)):
            found[row[3]] = Candidate(-own, -row[0], row[1], row[2], row[3], source)
        for row in _with_due_retries(tx, source, batch):
            found[row[3]] = Candidate(-own, -row[0], row[1], row[2], row[3], source)
    return sorted(candidate for candidate in found.values() if candidate.cursor_id not in batch.passed_over)


def _ready(tx: Transaction, source: Source, batch: Batch, limit: int) -> list[Row]:
    want = batch.want
    if want.key is not None:
        rows = tx.rows(SQL.ready_of_key, source.queue.id, want.key, source.group_id)
        return [row for row in rows if want.kinds is None or row[4] in want.kinds]
    if want.kinds is None:
        return tx.rows(SQL.ready, source.group_id, limit)
    return [row for kind in want.kinds for row in tx.rows(SQL.ready_of_kind, source.group_id, limit, kind)]


def _with_due_retries(tx: Transaction, source: Source, batch: Batch) -> list[Row]:
    want = batch.want
    if want.key is not None:
        return []
    rows = tx.rows(SQL.due_retries, source.group_id, tx.now, FRAGILE_LOSSES, batch.may_take_fragile)
    rows = [row for row in rows if want.kinds is None or row[4] in want.kinds]
    batch.met_fragile |= not batch.may_take_fragile and any(row[1] is None for row in rows)
    return [row for row in rows if row[1] is not None]
