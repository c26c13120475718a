"""dead letters: retried as new messages, or purged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from qo.core.message import TRANSACTION, MessageId
from qo.stores.sqlite.appending import append
from qo.stores.sqlite.intake import enter_due_of_keys
from qo.stores.sqlite.lanes import LaneName, lanes_to_use
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
    names = [LaneName.of(key, kind, priority) for _, key, kind, priority, *_ in letters]
    lanes = lanes_to_use(tx, queue, names)
    enter_due_of_keys(tx, queue, lanes.values())
    expires = None if ttl is None else tx.now + span(ttl)
    append(tx, [
        (queue, lanes[name], (new, kind, priority, payload, headers, tx.now, None, expires, group_id, old))
        for name, (old, _, kind, priority, payload, headers), new in zip(names, letters, answer, strict=True)
    ])  # fmt: skip
    for (old, key, *_, headers), new in zip(letters, answer, strict=True):
        tx.run(SQL.drop_letter, group_id, old)
        if key is not None and headers and (name := json.loads(headers).get(TRANSACTION)):
            tx.run(SQL.rename, queue.id, f"key:{key}", name, old, new)
    return answer


def purge(tx: Transaction, queue_name: str, group: str, ids: Sequence[MessageId] | None) -> int:
    queue = tx.existing_queue(queue_name)
    group_id = tx.existing_group(queue, group)
    if ids is None:
        return tx.run(SQL.drop_letters, group_id)
    return sum(tx.run(SQL.drop_letter, group_id, id) for id in dict.fromkeys(ids))
