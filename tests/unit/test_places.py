"""Where messages lie: stretches of lanes and runs of ids, as lanes interleave and messages go."""

from __future__ import annotations

import apsw
import pytest

from qo.core.message import message_ids, runs_of_ids
from qo.stores.sqlite import schema
from qo.stores.sqlite.keys import Keys
from qo.stores.sqlite.places import Repeated, place, remove_below, row_of
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

A, B = 1, 2
MESSAGES = statements("claim").messages


class Log:
    """Lanes that only append and forget."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        schema.bring_forward(self.connection, ":memory:", schema.migrations())
        self.connection.execute("INSERT INTO lanes (id, queue_id, key) VALUES (1, 1, 'a'), (2, 1, 'b')")
        self.tx = self.begin()

    def begin(self) -> Transaction:
        return Transaction(self.connection, 0, lambda: 0.5, set(), False, {}, Keys(None))

    def append(self, lane: int, ids: list[bytes]) -> None:
        tail = self.tx.value("SELECT tail FROM lanes WHERE id = ?", lane)
        place(self.tx, [(lane, tail, len(ids))], ids)
        rows = [(lane, offset, id, b"", 0, 0) for offset, id in enumerate(ids, tail)]
        self.tx.many(
            "INSERT INTO messages (lane_id, offset, id, payload, created_at, entered_at) VALUES (?,?,?,?,?,?)", rows
        )
        self.tx.run("UPDATE lanes SET tail = ? WHERE id = ?", tail + len(ids), lane)

    def read(self, lane: int, offset: int, limit: int = 100) -> list[tuple[int, bytes]]:
        return [row[:2] for row in self.tx.rows(MESSAGES, lane, offset, limit)]

    def count(self, table: str) -> int:
        return self.tx.value(f"SELECT count(*) FROM {table}")


def ids(number: int, count: int) -> list[bytes]:
    return list(message_ids(number, 0, count))


@pytest.fixture
def log():
    log = Log()
    yield log
    log.connection.close()


def test_batches_of_one_lane_alone_are_one_stretch_across_transactions(log):
    log.append(A, ids(1, 3))
    log.tx = log.begin()
    log.append(A, ids(2, 2))
    assert (log.count("stretches"), log.count("id_runs")) == (1, 2)
    assert log.read(A, 0) == list(enumerate(ids(1, 3) + ids(2, 2)))


@pytest.mark.parametrize("others", [2, 3])
def test_interleaved_lanes_are_read_in_order_from_any_offset(log, others):
    for round in range(5):
        log.append(A, ids(10 + round, 2))
        log.append(B, ids(20 + round, others))
    everything = list(enumerate(id for round in range(5) for id in ids(10 + round, 2)))
    for offset in range(11):
        assert log.read(A, offset) == everything[offset:]
        assert log.read(A, offset, 3) == everything[offset : offset + 3]


def test_every_id_is_found_and_no_other(log):
    log.append(A, ids(1, 4))
    log.append(B, ids(2, 1))
    rows = [row_of(log.tx, id) for id in ids(1, 4) + ids(2, 1)]
    assert rows == [1, 2, 3, 4, 5]
    assert row_of(log.tx, ids(1, 5)[4]) is None
    assert row_of(log.tx, ids(0, 1)[0]) is None


@pytest.mark.parametrize("floor", range(8))
def test_removing_below_any_offset_leaves_the_rest_to_be_found(log, floor):
    log.append(A, ids(1, 3))
    log.append(B, ids(2, 2))
    log.append(A, ids(3, 4))
    everything = list(enumerate(ids(1, 3) + ids(3, 4)))
    remove_below(log.tx, A, floor)
    assert log.read(A, floor) == everything[floor:]
    assert [row_of(log.tx, id) is not None for _, id in everything] == [offset >= floor for offset, _ in everything]
    assert log.read(B, 0) == list(enumerate(ids(2, 2)))


def test_what_was_removed_step_by_step_leaves_nothing_behind(log):
    log.append(A, ids(1, 5))
    log.append(B, ids(2, 1))
    log.append(A, ids(3, 5))
    for floor in range(11):
        remove_below(log.tx, A, floor)
    assert (log.count("messages"), log.count("stretches"), log.count("id_runs")) == (1, 1, 1)


def test_rows_of_removed_messages_are_given_out_again_to_whoever_comes(log):
    log.append(A, ids(1, 3))
    remove_below(log.tx, A, 3)
    log.append(B, ids(2, 2))
    log.append(A, ids(3, 1))
    assert log.read(A, 0) == [(3, ids(3, 1)[0])]
    assert log.read(B, 0) == list(enumerate(ids(2, 2)))


@pytest.mark.parametrize("again", [slice(0, 1), slice(1, 2), slice(2, 3), slice(0, 3)])
def test_an_id_is_refused_a_second_time(log, again):
    log.append(A, ids(1, 3))
    with pytest.raises(Repeated):
        log.append(B, ids(1, 3)[again])


def test_runs_are_cut_where_ids_do_not_count_up():
    one, two = ids(1, 3), ids(2, 2)
    assert runs_of_ids(one) == [(one[0], one[2], 3)]
    assert runs_of_ids(one + two) == [(one[0], one[2], 3), (two[0], two[1], 2)]
    assert runs_of_ids([one[1], one[0]]) == [(one[1], one[1], 1), (one[0], one[0], 1)]
    assert runs_of_ids([one[0], one[2]]) == [(one[0], one[0], 1), (one[2], one[2], 1)]
    assert runs_of_ids([one[0], one[0], one[2]]) == [(one[0], one[0], 1), (one[0], one[0], 1), (one[2], one[2], 1)]


@pytest.mark.parametrize("again", [slice(0, 1), slice(0, 2), slice(1, 2)])
def test_an_id_whose_message_was_removed_is_used_again_and_the_others_of_its_run_are_still_found(log, again):
    log.append(A, ids(1, 4))
    remove_below(log.tx, A, 2)
    log.tx.careful = True
    log.append(B, ids(1, 4)[again])
    assert [row_of(log.tx, id) is not None for id in ids(1, 4)[2:]] == [True, True]
    assert all(row_of(log.tx, id) is not None for id in ids(1, 4)[again])
    log.tx.careful = False
    with pytest.raises(Repeated):
        log.append(B, ids(1, 4)[2:3])
