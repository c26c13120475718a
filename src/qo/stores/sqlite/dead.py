"""dead letters: retried as new messages, or purged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from qo.core.message import TRANSACTION, MessageId
from qo.stores.sqlite.intake import enter_due_of_key
from qo.stores.sqlite.lanes import Head, LaneName, append, lane_to_use
from qo.stores.sqlite.moments import span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("dead")

RETRY_LIMIT = 1000
"""How many dead letters one call retries if it names none."""


def retry(
    tx: Transaction,
    queue_name: str,
    group: str,
    ids: Sequence[MessageId] | None,
    new_ids: Callable[[int], list[MessageId]],
) -> list[MessageId]:
    """Append dead letters again as new messages, each naming the old, addressed to their group alone."""
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    if ids is None:
        letters = tx.rows(SQL.letters, group_id, RETRY_LIMIT)
    else:
        found = (tx.row(SQL.letter, group_id, id) for id in dict.fromkeys(ids))
        letters = [letter for letter in found if letter is not None]
    answer = new_ids(len(letters))
    ttl = queue.settings.ttl
    for (old, key, kind, priority, payload, headers), new in zip(letters, answer, strict=True):
        lane = lane_to_use(tx, queue, LaneName.of(key, kind, priority))
        if lane.keyed:
            enter_due_of_key(tx, queue, lane)
        expires = None if ttl is None else tx.now + span(ttl)
        own = (kind, priority) if lane.keyed else (None, None)
        entry = (new, *own, payload, headers, tx.now, None, expires, group_id, old)
        tx.run(SQL.address, lane.id, lane.tail, group_id)
        append(tx, queue, lane, [entry], Head(kind, priority, expires, group_id))
        tx.run(SQL.drop_letter, group_id, old)
        if lane.keyed and headers and (name := json.loads(headers).get(TRANSACTION)):
            tx.run(SQL.rename, queue.id, f"key:{key}", name, old, new)
    return answer


def purge(tx: Transaction, queue_name: str, group: str, ids: Sequence[MessageId] | None) -> int:
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    if ids is None:
        return tx.run(SQL.drop_letters, group_id)
    return sum(tx.run(SQL.drop_letter, group_id, id) for id in dict.fromkeys(ids))
