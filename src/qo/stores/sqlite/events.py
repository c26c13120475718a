"""What happened to single messages, for queues that keep a full history."""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.outcome import JobState
from qo.stores.sqlite.transaction import Transaction


def record_events(tx: Transaction, ids: Sequence[bytes], state: JobState, detail: str) -> None:
    """Write an event for each; only for queues whose history is full."""
    tx.many(
        """INSERT INTO events (message_id, at, number, state, detail)
           VALUES (?1, ?2, (SELECT count(*) FROM events WHERE message_id = ?1 AND at = ?2), ?3, ?4)""",
        [(id, tx.now, state, detail) for id in ids],
    )
