"""How many workers there should be: up at once, down with patience, within the bounds."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import Invalid
from qo.core.scaling import Demand, Scaler, ScalingSettings, desired
from qo.testing.clock import START

SETTINGS = ScalingSettings()


def after(seconds: float):
    return START + timedelta(seconds=seconds)


def waiting(count: int, since: float = 0.0, running: int = 0) -> Demand:
    return Demand(waiting=count, runnable=count, running=running, oldest_at=after(since) if count else None)


@pytest.mark.parametrize(("depth", "workers"), [(0, 2), (1, 2), (3, 3), (8, 8), (100, 8)])
def test_one_for_each_message_within_the_bounds(depth, workers):
    assert desired(waiting(depth), SETTINGS, START) == workers
    assert desired(waiting(0, running=depth), SETTINGS, START) == workers


def test_a_minimum_of_none_is_valid():
    assert desired(Demand(), ScalingSettings(default_count=0), START) == 0
    assert desired(waiting(1), ScalingSettings(default_count=0), START) == 1


def test_no_more_than_drain_it_in_time_once_their_speed_is_known():
    none = ScalingSettings(default_count=0)
    assert desired(waiting(500), none, START, rate=10.0) == 5  # ten seconds, a hundred each
    assert desired(waiting(1), none, START, rate=10.0) == 1
    assert desired(waiting(5), none, START, rate=0.01) == 5


def test_one_more_than_there_are_if_the_oldest_waits_for_too_long():
    none = ScalingSettings(default_count=0)
    late = waiting(500, since=-11)
    assert desired(late, none, START, rate=100.0, workers=3) == 4
    assert desired(late, none, START, rate=100.0, workers=8) == 8
    assert desired(waiting(2, since=-11), none, START, rate=100.0, workers=3) == 2
    blocked = Demand(waiting=0, runnable=0, running=2, oldest_at=after(-11))
    assert desired(blocked, none, START, rate=100.0, workers=3) == 1


def test_up_at_once_and_down_with_patience():
    scaler = Scaler(ScalingSettings(default_count=0, scale_down_seconds=30))
    assert scaler.decide(waiting(5), 0, START) == 5
    assert scaler.decide(waiting(8), 5, after(1)) == 8
    assert scaler.decide(waiting(3), 8, after(2)) == 8
    assert scaler.decide(Demand(), 8, after(20)) == 8
    assert scaler.next_change() == after(31)
    assert scaler.decide(Demand(), 8, after(31)) == 3
    assert scaler.decide(Demand(), 3, after(32)) == 0
    assert scaler.next_change() is None
    assert scaler.decide(waiting(4), 0, after(33)) == 4


def test_what_was_wanted_again_is_kept():
    scaler = Scaler(ScalingSettings(default_count=0, scale_down_seconds=30))
    assert scaler.decide(waiting(5), 0, START) == 5
    assert scaler.decide(Demand(), 5, after(10)) == 5
    assert scaler.decide(waiting(5, since=20), 5, after(20)) == 5
    assert scaler.decide(Demand(), 5, after(40)) == 5
    assert scaler.decide(Demand(), 5, after(50)) == 0


def test_a_worker_s_speed_is_the_best_that_was_seen_lately():
    scaler = Scaler(SETTINGS)
    scaler.finished(100, 2, 1.0)
    assert scaler.rate == 50
    scaler.finished(0, 2, 1.0)
    assert scaler.rate == 45
    scaler.finished(0, 0, 1.0)
    assert scaler.rate == 40.5


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"default_count": -1}, "workers.default_count"),
        ({"default_count": 9}, "workers.max_count"),
        ({"max_count": 0, "default_count": 0}, "workers.max_count"),
        ({"scale_interval_ms": 0}, "workers.scale_interval_ms"),
        ({"scale_down_seconds": -1}, "workers.scale_down_seconds"),
        ({"lease_timeout_seconds": 0}, "workers.lease_timeout_seconds"),
        ({"poll_interval_ms": -1}, "workers.poll_interval_ms"),
        ({"drain_seconds": 0}, "workers.drain_seconds"),
    ],
)
def test_bounds_that_make_no_sense_are_named(given, field):
    with pytest.raises(Invalid, match=field):
        ScalingSettings(**given)
