"""Where messages lie.

The log is one table whose rows are numbered in the order of commits, with no index
of its own: an index entry for each message cost a push more than the message. A
lane finds its messages through its stretches, each a range of offsets in
consecutive rows; an id is found through the run of consecutive ids that it came
with. Messages lie in the order in which they were pushed, also when a batch goes to
many lanes: it is one run of ids then, and a stretch for each change of lane. If the
newest message of the log is the newest of its lane, the stretch goes on.

A lane's stretches lie end to end from its first offset to its tail. Runs of ids
never overlap; one is kept until the last of its messages is removed. Only rows of
removed messages are ever given out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from qo.core.message import MessageId, runs_of_ids
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("places")


class Repeated(Exception):
    """An id is in the log already: the careful rerun of the batch will find which."""


Stretch = tuple[int, int, int]
"""Messages that enter one lane, one behind the other: the lane's id, the offset of the first, how many."""


def place(tx: Transaction, stretches: Sequence[Stretch], ids: Sequence[bytes]) -> None:
    """Note where the next messages of the log belong; they are to be appended right after, in this order."""
    row, lane_before, offset_before = tx.newest or tx.row(SQL.newest) or (0, None, None)
    row += 1
    _note_ids(tx, ids, row)
    begun = []
    for lane_id, offset, count in stretches:
        if lane_before != lane_id or offset_before != offset - 1:
            begun.append((lane_id, offset, row))
        row += count
        lane_before, offset_before = lane_id, offset + count - 1
    if begun:
        tx.many(SQL.begin_stretch, begun)
    tx.newest = (row - 1, lane_before, offset_before)


def _note_ids(tx: Transaction, ids: Sequence[bytes], row: int) -> None:
    for first, last, count in runs_of_ids(ids):
        if tx.careful:
            _cut_out(tx, first, last)
        _check_run(tx, first, last)
        tx.run(SQL.begin_id_run, first, last, count, row)
        row += count


def check_new(tx: Transaction, ids: Sequence[bytes]) -> None:
    """Raise `Repeated` if the log has one of these, or had it and has others of its run."""
    for first, last, _ in runs_of_ids(ids):
        _check_run(tx, first, last)


def _check_run(tx: Transaction, first: bytes, last: bytes) -> None:
    if _overlapping(tx, first, last) is not None:
        raise Repeated


def _overlapping(tx: Transaction, first: bytes, last: bytes) -> Row | None:
    before = tx.row(SQL.id_run_before, last)
    return None if before is None or before[1] < first else before


def _cut_out(tx: Transaction, first: bytes, last: bytes) -> None:
    """Let ids be used again whose messages were removed: what is left of their run lies before and behind them."""
    while (run := _overlapping(tx, first, last)) is not None:
        begin, end, row = run
        tx.run(SQL.drop_whole_id_run, begin)
        for from_id, to_id in ((begin, _counted(first, -1)), (_counted(last, 1), end)):
            if from_id <= to_id:
                from_row, to_row = row + _apart(begin, from_id), row + _apart(begin, to_id) + 1
                kept = tx.value(SQL.count_ids, from_row, to_row, from_id, to_id)
                if kept:
                    tx.run(SQL.keep_id_run, from_id, to_id, to_row - from_row, kept, from_row)


def _counted(id: bytes, step: int) -> bytes:
    return (int.from_bytes(id) + step).to_bytes(len(id))


def row_of(tx: Transaction, id: MessageId) -> int | None:
    """The row of the message with that id, if it is in the log."""
    run = _run_of(tx, id)
    row: int | None = None if run is None else tx.value(SQL.row_of, run[2] + _apart(run[0], id), id)
    return row


def _run_of(tx: Transaction, id: bytes) -> Row | None:
    found = tx.row(SQL.id_run_before, id)
    return None if found is None or found[1] < id else found


def _apart(first: bytes, id: bytes) -> int:
    return int.from_bytes(id) - int.from_bytes(first)


def remove_below(tx: Transaction, lane_id: int, floor: int) -> None:
    """Remove a lane's messages below an offset, and what says where they lie."""
    tx.newest = None
    for first, last, row in tx.rows(SQL.spans_below, lane_id, floor):
        end = row + min(last, floor) - first
        _forget_ids(tx, (id for (id,) in tx.rows(SQL.ids_between, row, end)))
        tx.run(SQL.drop_messages, row, end)
        if last <= floor:
            tx.run(SQL.drop_stretch, lane_id, first)


def _forget_ids(tx: Transaction, ids: Iterable[bytes]) -> None:
    """Count removed messages off their runs; a run with none left goes."""
    gone: Counter[bytes] = Counter()
    first = last = b""
    for id in ids:
        if not first <= id <= last:
            first, last, _ = _run_of(tx, id) or (id, id, 0)
        gone[first] += 1
    tx.many(SQL.shrink_id_run, gone.items())
    tx.many(SQL.drop_id_run, [(first,) for first in gone])
