"""extend: hold leases for longer, say what has started, learn what was canceled."""

from __future__ import annotations

import json

from qo.core.lane import LaneId
from qo.core.lease import Extended, Extension, Lost, Place
from qo.core.outcome import JobState
from qo.stores.sqlite import outcomes
from qo.stores.sqlite.leases import LeaseRow, read_lease
from qo.stores.sqlite.moments import moment, span
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("settle")


def extend(tx: Transaction, extensions: tuple[Extension, ...]) -> list[Extended | Lost]:
    return [_extend(tx, extension) for extension in extensions]


def _extend(tx: Transaction, extension: Extension) -> Extended | Lost:
    leases = [read_lease(row) for row in tx.rows(SQL.leases_of_token, extension.token, tx.now)]
    if not leases:
        return Lost()
    deadline = max(tx.now + span(extension.lease), *(lease.expires_at for lease in leases))
    for lease in leases:
        _note_started(tx, lease, [place.offset for place in extension.started if place.lane == lease.lane_id])
        started = json.dumps(lease.started) if lease.started else None
        tx.run(SQL.prolong, lease.token, lease.lane_id, deadline, tx.now, started)
    canceled = [Place(LaneId(lease.lane_id), offset) for lease in leases for offset in _to_tell(tx, lease)]
    return Extended(moment(deadline), tuple(canceled), len(leases))


def _note_started(tx: Transaction, lease: LeaseRow, offsets: list[int]) -> None:
    for offset in offsets:
        if offset not in lease.started:
            lease.started[offset] = tx.now
            if outcomes.starts_at_once(tx, lease.owner or ""):
                continue  # the claim has noted it
            queue_name, group_id = tx.row(SQL.owner_queue, lease.cursor_id) or ("", 0)
            queue = tx.existing_queue(queue_name)
            outcomes.note_event(tx, queue, group_id, lease.lane_id, offset, JobState.RUNNING, lease.owner or "")


def _to_tell(tx: Transaction, lease: LeaseRow) -> list[int]:
    """Canceled messages that are still unsettled under this lease."""
    if not lease.canceled:
        return []
    retried = {row[0] for row in tx.rows(statements("advance").claimed_retries, lease.cursor_id, lease.token)}
    return [o for o in sorted(lease.canceled) if o in retried or _in_range(lease, o)]


def _in_range(lease: LeaseRow, offset: int) -> bool:
    return lease.from_offset <= offset < lease.to_offset and not lease.is_marked(offset)
