"""Where messages lie.

The log is one table whose rows are numbered in the order of commits, with no index
of its own: an index entry for each message cost a push more than the message. A
lane finds its messages through its stretches, each a range of offsets in
consecutive rows; an id is found through the run of consecutive ids that it came
with. A pushed batch is one run of ids, and one stretch or none: if the newest
message of the log is the newest of its lane, the stretch goes on.

A lane's stretches lie end to end from its first offset to its tail; runs of ids
never overlap. Only rows of removed messages are ever given out again.
"""

from __future__ import annotations

from collections.abc import Sequence

from qo.core.message import MessageId, runs_of_ids
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("places")


class Repeated(Exception):
    """An id is in the log already: the careful rerun of the batch will find which."""


def place(tx: Transaction, lane_id: int, offset: int, ids: Sequence[bytes]) -> None:
    """Note where the next messages of a lane go; they are to be appended right after."""
    row, lane_before, offset_before = tx.newest or tx.row(SQL.newest) or (0, None, None)
    row += 1
    if lane_before != lane_id or offset_before != offset - 1:
        tx.run(SQL.begin_stretch, lane_id, offset, row)
    at = row
    for first, last, count in runs_of_ids(ids):
        before = tx.row(SQL.id_run_before, last)
        if before is not None and before[1] >= first:
            raise Repeated
        tx.run(SQL.begin_id_run, first, last, count, at)
        at += count
    tx.newest = (at - 1, lane_id, offset + len(ids) - 1)


def row_of(tx: Transaction, id: MessageId) -> int | None:
    """The row of the message with that id, if it is in the log."""
    found = tx.row(SQL.id_run_before, id)
    if found is None or found[1] < id:
        return None
    first, _, row = found
    return int(row + int.from_bytes(id) - int.from_bytes(first))


def remove_below(tx: Transaction, lane_id: int, floor: int) -> None:
    """Remove a lane's messages below an offset, and what says where they lie."""
    tx.newest = None
    for first, last, row in tx.rows(SQL.spans_below, lane_id, floor):
        end = row + min(last, floor) - first
        if last > floor:
            _split_id_run(tx, end)
        tx.run(SQL.drop_id_runs, row, end)
        tx.run(SQL.drop_messages, row, end)
        if last <= floor:
            tx.run(SQL.drop_stretch, lane_id, first)


def _split_id_run(tx: Transaction, row: int) -> None:
    """Have a run of ids begin at this row, because what lies before it is about to go."""
    id = tx.value(SQL.id_at, row)
    found = tx.row(SQL.id_run_before, id)
    assert found is not None
    first, last, _ = found
    if first != id:
        tx.run(SQL.begin_id_run, id, last, int.from_bytes(last) - int.from_bytes(id) + 1, row)
