"""The checker finds what is wrong in wrong histories, and nothing in a right one."""

from __future__ import annotations

import pytest

from tests.crash import runs
from tests.crash.history import problems


def push(at, *messages, acknowledged=True):
    events = [{"event": "pushing", "at": at, "messages": [list(each) for each in messages]}]
    if acknowledged:
        events.append({"event": "pushed", "at": at + 0.1, "ids": [id for id, _ in messages]})
    return events


def claim(at, id, token, offset=0, until=None):
    return {
        "event": "claimed",
        "at": at,
        "asked_at": at - 0.1,
        "id": id,
        "token": token,
        "offset": offset,
        "expires_at": at + 10 if until is None else until,
    }


def settle(at, id, token, verdict="completed"):
    return [
        {"event": "settling", "at": at, "id": id, "token": token},
        {"event": "settled", "at": at + 0.1, "id": id, "token": token, "verdict": verdict},
    ]


RIGHT = [
    *push(0, ("m", "k"), ("n", "k")),
    claim(1, "m", "t1", 0, until=2),
    claim(3, "m", "t2", 0),
    *settle(4, "m", "t2"),
    claim(5, "n", "t3", 1),
    *settle(6, "n", "t3"),
]
DONE = {"m": "succeeded", "n": "succeeded"}


def test_a_right_history_has_no_problems():
    assert problems(RIGHT, DONE) == []


def test_a_push_without_an_answer_may_be_there_or_not():
    maybe = push(0, ("m", None), acknowledged=False)
    assert problems(maybe, {}) == []
    assert problems([*maybe, claim(1, "m", "t"), *settle(2, "m", "t")], {"m": "succeeded"}) == []


def test_a_settle_without_an_answer_may_have_counted():
    asked = {"event": "settling", "at": 2, "id": "m", "token": "t"}
    assert problems([*push(0, ("m", None)), claim(1, "m", "t"), asked], {"m": "succeeded"}) == []


@pytest.mark.parametrize(
    ("history", "final", "problem"),
    [
        (push(0, ("m", None)), {}, "lost"),
        (push(0, ("m", None)), {"m": "queued"}, "never ended"),
        (RIGHT, {**DONE, "x": "succeeded"}, "nobody pushed"),
        ([*RIGHT, claim(9, "ghost", "t9"), *settle(9.5, "ghost", "t9")], DONE, "nobody pushed"),
        ([*RIGHT, claim(9, "n", "t9", 1)], DONE, "again after it was over"),
        (
            [*push(0, ("m", None)), claim(1, "m", "a"), claim(2, "m", "b"), *settle(3, "m", "b")],
            {"m": "succeeded"},
            "two at once",
        ),
        (
            [
                *push(0, ("m", None)),
                claim(1, "m", "a", until=2),
                claim(3, "m", "b"),
                *settle(4, "m", "a"),
                *settle(5, "m", "b"),
            ],
            {"m": "succeeded"},
            "settled 2 times",
        ),
        ([*push(0, ("m", None)), claim(1, "m", "a"), *settle(2, "m", "a", "buried")], {"m": "succeeded"}, "kept as"),
        (
            [
                *push(0, ("m", "k"), ("n", "k")),
                claim(1, "m", "a", 0),
                claim(2, "n", "b", 1),
                *settle(3, "m", "a"),
                *settle(4, "n", "b"),
            ],
            DONE,
            "before m was over",
        ),
        (
            [
                *push(0, ("m", "k"), ("n", "k")),
                claim(1, "m", "a", 0),
                *settle(2, "m", "a"),
                claim(3, "n", "b", 0),
                *settle(4, "n", "b"),
            ],
            DONE,
            "given out twice",
        ),
    ],
)
def test_each_fault_is_found(history, final, problem):
    found = problems(sorted(history, key=lambda event: event["at"]), final)
    assert any(problem in each for each in found), found


RUNS = ["begin 1 k 0", "end 1 k 0", "begin 2 k 1", "killed 2", "begin 1 k 1", "begin 1 j 0", "end 1 k 1", "end 1 j 0"]


def test_runs_that_are_right_have_no_problems():
    assert runs.problems(RUNS, {"k": 2, "j": 1}) == []
    again = ["begin 1 k 0", "end 1 k 0", "killed 1", "begin 2 k 0", "end 2 k 0"]  # killed before it had settled
    assert runs.problems(again, {"k": 1}) == []


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([line for line in RUNS if line != "end 1 k 1"], "never ended"),
        ([line for line in RUNS if line != "killed 2"], "began while 2 ran 1"),
        (["begin 1 k 1", "end 1 k 1", "begin 1 k 0", "end 1 k 0", "begin 1 j 0", "end 1 j 0"], "before 0 had ended"),
        ([*RUNS, "begin 2 k 0", "end 2 k 0"], "ran again"),
    ],
)
def test_runs_that_are_wrong_are_noticed(lines, problem):
    assert any(problem in each for each in runs.problems(lines, {"k": 2, "j": 1}))
