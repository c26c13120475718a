"""What is written when a message is finished for a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qo.core import fate
from qo.core.lease import Verdict
from qo.core.message import MessageId
from qo.core.outcome import JobState
from qo.core.queue import History
from qo.stores.sqlite.events import record_events
from qo.stores.sqlite.lanes import to_tidy
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction, widened

SQL = statements("outcomes")
RECORD = widened(SQL.record, shared=1)


class Finish(NamedTuple):
    """The end of one message: what became of it, and who had it."""

    offset: int
    state: JobState
    attempt: int
    reason: str | None = None
    error: str | None = None
    result: bytes | None = None
    owner: str | None = None
    started_at: int | None = None


class Ends(NamedTuple):
    """Messages of one lane that a group is done with."""

    queue: QueueRow
    group_id: int
    lane_id: int
    finishes: Sequence[Finish]


def finish(tx: Transaction, queue: QueueRow, group_id: int, lane_id: int, finishes: Sequence[Finish]) -> None:
    """Write the outcomes of one lane."""
    if finishes:
        finish_all(tx, [Ends(queue, group_id, lane_id, finishes)])


def finish_all(tx: Transaction, ends: Sequence[Ends]) -> None:
    """Write outcomes, where the queues keep them. Only the default group has any."""
    to_tidy(tx, [each.lane_id for each in ends])
    kept: list[object] = []
    count = 0
    for queue, group_id, lane_id, finishes in ends:
        if group_id != queue.default_group_id:
            continue
        history = queue.settings.history
        if history is not History.NONE:
            for each in finishes:
                kept += (lane_id, *each)
            count += len(finishes)
        if tx.watched or history is History.FULL:
            for each in finishes:
                _tell(tx, history, lane_id, each)
    if count:
        tx.run_wide(RECORD, (tx.now,), kept, count, step=None)


def _tell(tx: Transaction, history: History, lane_id: int, finish: Finish) -> None:
    id: MessageId = tx.value(SQL.ids, lane_id, finish.offset)
    if id in tx.watched:
        tx.finished.add(id)
    if history is History.FULL:
        record_events(tx, [id], finish.state, finish.reason or finish.error or "")


def bury(tx: Transaction, group_id: int, lane_id: int, offset: int, dead: fate.Dead) -> None:
    """Copy a message to the dead letters of a group, if its queue keeps those."""
    if not dead.kept:
        return
    tx.run(SQL.bury, lane_id, offset, group_id, dead.attempts, dead.losses, dead.reason, dead.error, tx.now)


def note_event(
    tx: Transaction, queue: QueueRow, group_id: int, lane_id: int, offset: int, state: JobState, detail: str
) -> None:
    """An event that is not the end."""
    if queue.settings.history is History.FULL and group_id == queue.default_group_id:
        record_events(tx, [tx.value(SQL.ids, lane_id, offset)], state, detail)


def note_failure(
    tx: Transaction,
    queue: QueueRow,
    group_id: int,
    lane_id: int,
    offset: int,
    again: fate.Again,
    owner: str | None,
    started_at: int | None,
) -> None:
    """Keep why an attempt failed that was not the last."""
    if group_id != queue.default_group_id:
        return
    if again.error and queue.settings.history is not History.NONE:
        attempt = Finish(offset, JobState.QUEUED, again.attempts, None, again.error, None, owner, started_at)
        tx.run_wide(RECORD, (tx.now,), (lane_id, *attempt), 1, step=None)
    note_event(tx, queue, group_id, lane_id, offset, JobState.QUEUED, f"attempt {again.attempts} failed")


def finish_of(offset: int, end: fate.Fate, attempt: int, owner: str | None, started_at: int | None) -> Finish | None:
    """The outcome of a fate that is an end; None for one that is not."""
    if isinstance(end, fate.Completed):
        return Finish(offset, JobState.SUCCEEDED, attempt, None, None, end.result, owner, started_at)
    match end:
        case fate.Dead(reason, error, attempts):
            return Finish(offset, JobState.FAILED, max(attempts, 1), reason, error, None, owner, started_at)
        case fate.Canceled(reason):
            return Finish(offset, JobState.CANCELED, attempt, reason, None, None, owner, started_at)
        case _:
            return None


def canceled_ends(offsets: Sequence[int], owner: str | None) -> list[Finish]:
    """The ends of messages that a holder gives back after they were canceled."""
    return [Finish(offset, JobState.CANCELED, 1, "canceled", owner=owner) for offset in offsets]


def verdict_of(end: fate.Fate) -> Verdict:
    if isinstance(end, fate.Completed):
        return Verdict.COMPLETED
    match end:
        case fate.Again():
            return Verdict.RETRYING
        case fate.Back():
            return Verdict.RELEASED
        case fate.Dead():
            return Verdict.BURIED if end.kept else Verdict.DROPPED
        case fate.Canceled():
            return Verdict.CANCELED


def starts_at_once(tx: Transaction, owner: str) -> bool:
    """Whether the owner is a registered worker, which starts what it claims at once and need not say so."""
    return bool(owner) and tx.row("SELECT 1 FROM workers WHERE id = ?", owner) is not None
