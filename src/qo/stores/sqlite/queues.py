"""queues: settings, pause, purge, delete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qo.core.queue import QueueSettings
from qo.stores.sqlite.advance import lapse_lost
from qo.stores.sqlite.groups import drop_group
from qo.stores.sqlite.lanes import TIDY_REST, queue_to_use, settings_text
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import QueueRow, Transaction

SQL = statements("queues")


def configure(tx: Transaction, name: str, changes: Mapping[str, Any]) -> QueueSettings:
    queue = queue_to_use(tx, name)
    settings = queue.settings.configured(changes, tx.time)
    set_settings(tx, queue, settings)
    tx.run(SQL.tidy_soon, queue.id, tx.now + TIDY_REST)
    return settings


def reconfigure(tx: Transaction, name: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]) -> None:
    known = tx.queue(name)
    configure(tx, name, change(None if known is None else known.settings))


def set_settings(tx: Transaction, queue: QueueRow, settings: QueueSettings) -> None:
    tx.run(SQL.set_settings, queue.id, settings_text(settings), *settings.names(queue.name))
    if settings.window != queue.settings.window:
        tx.run(SQL.set_hold, queue.id, span(settings.window))
    tx.forget_queue(queue.name)
    tx.hint(queue.name)


def note_default_claim(tx: Transaction, queue: QueueRow) -> QueueRow:
    """The default group claims: from now on it holds messages back, if it did not."""
    if queue.settings.default_group:
        return queue
    set_settings(tx, queue, queue.settings.changed({"default_group": True}))
    return tx.existing_queue(queue.name)


def pause(tx: Transaction, name: str, paused: bool) -> bool:
    queue = queue_to_use(tx, name)
    tx.run(SQL.set_paused, queue.id, int(paused))
    tx.forget_queue(name)
    tx.hint(name)
    return paused


def purge(tx: Transaction, name: str) -> int:
    """Remove every message for every group. Offsets go on where they were: none is ever given out twice.

    What died before is a dead letter, though nobody has looked since.
    """
    queue = tx.existing_queue(name)
    for (group_id,) in tx.rows(SQL.group_ids, queue.id):
        lapse_lost(tx, queue, group_id)
    count: int = tx.value(SQL.count_messages, queue.id)
    tx.run(SQL.end_leases, queue.id, tx.now)
    tx.newest = None
    log = SQL.drop_events, SQL.drop_intake_events, SQL.shrink_id_runs, SQL.drop_id_runs, SQL.drop_messages
    rest = (
        SQL.drop_stretches,
        SQL.drop_outcomes,
        SQL.drop_addressed,
        SQL.drop_retries,
        SQL.drop_skips,
        SQL.drop_intake,
        SQL.drop_marks,
    )
    for sql in (*log, *rest):
        tx.run(sql, queue.id)
    tx.run(SQL.empty_cursors, queue.id)
    tx.run(SQL.empty_lanes, queue.id, tx.now + TIDY_REST)
    tx.hint_everyone = True
    return count


def delete(tx: Transaction, name: str) -> bool:
    queue = tx.queue(name)
    if queue is None:
        return False
    purge(tx, name)
    for (group_id,) in tx.rows(SQL.group_ids, queue.id):
        drop_group(tx, group_id)
    _drop_rest(tx, queue)
    tx.forget_queue(name)
    return True


def _drop_rest(tx: Transaction, queue: QueueRow) -> None:
    for sql in (SQL.drop_settlements, SQL.drop_dedupe, SQL.drop_dead, SQL.drop_lanes, SQL.drop_queue):
        tx.run(sql, queue.id)
    traces = statements("traces")
    tx.run(traces.drop_names_of_queue, queue.name)
    tx.run(traces.drop_of_queue, queue.name)
