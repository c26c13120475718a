"""Expiry and losses: one that kills its workers ends as a dead letter and its neighbours do not."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.lease import Nothing
from tests.conformance.remote import OverHttp
from tests.conformance.saying import (
    ORDERS,
    answers,
    claim,
    done,
    failed,
    message,
    messages,
    nothing,
    payloads,
    settle,
    want,
)


async def lose(store, clock, **options) -> list[bytes]:
    """Claim and let the lease run out."""
    taken = await claim(store, **options)
    clock.move(seconds=30)
    return payloads(taken)


async def test_an_expiry_uses_no_attempt(store, clock):
    await store.push(messages(2))
    await lose(store, clock)
    assert [each.attempt for each in await claim(store)] == [1, 1]


async def test_a_keyed_message_with_a_loss_is_handed_out_alone(store, clock):
    await store.push(messages(3, key="k"))
    assert await lose(store, clock) == [b"0", b"1", b"2"]
    [alone] = await claim(store)
    await settle(store, done(alone))
    assert payloads(await claim(store)) == [b"1", b"2"]


async def test_from_the_second_loss_on_a_message_waits_out_its_backoff(store, clock):
    await store.push([message()])
    await lose(store, clock)
    await lose(store, clock)
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=1)
    clock.move(seconds=1)
    await lose(store, clock)
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=2)


async def test_backoff_after_a_loss_counts_from_the_deadline_not_from_the_look(store, clock):
    await store.push([message()])
    await lose(store, clock)
    await lose(store, clock)
    clock.move(minutes=5)
    assert len(await claim(store)) == 1


@pytest.mark.parametrize("key", [None, "k"])
async def test_at_max_lost_it_is_buried_as_lost(store, clock, key):
    await store.configure(ORDERS, {"max_lost": 3})
    await store.push([message(key=key)])
    for _ in range(3):
        assert len(await lose(store, clock)) == 1
        clock.move(seconds=10)
    assert (await nothing(store)).ask_again is None
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert (letter.reason, letter.losses, letter.attempts) == ("lost", 3, 0)


async def test_max_lost_0_is_no_limit(store, clock):
    await store.configure(ORDERS, {"max_lost": 0})
    await store.push([message()])
    for _ in range(12):
        assert len(await lose(store, clock)) == 1
        clock.move(hours=2)


async def test_complete_and_fail_clear_the_count_and_release_does_not(store, clock):
    await store.configure(ORDERS, {"max_lost": 3})
    await store.push([message()])
    await lose(store, clock)
    await lose(store, clock)
    clock.move(seconds=10)
    [each] = await claim(store)
    await settle(store, failed(each, after=0))
    for _ in range(2):  # a third and fourth loss in all, the first and second since it failed
        assert len(await lose(store, clock)) == 1
        clock.move(seconds=10)
    assert len(await claim(store)) == 1


async def test_an_owner_holds_one_twice_lost_message_at_a_time(store, clock):
    await store.push(messages(3))
    await lose(store, clock)
    await lose(store, clock)
    clock.move(seconds=10)
    [held] = await claim(store, owner="w1")
    [limited] = await store.claim([want(owner="w1")])
    assert isinstance(limited, Nothing)
    assert limited.owner_limited
    assert limited.ask_again == held.expires_at
    [other] = await claim(store, owner="w2")
    await settle(store, done(held))
    [following] = await claim(store, owner="w1")
    assert len({held.payload, other.payload, following.payload}) == 3


async def test_behind_a_killer_an_owner_is_told_of_the_next_retry(store, clock):
    await store.push(messages(2))
    await lose(store, clock)
    await lose(store, clock)
    clock.move(seconds=10)
    await claim(store, owner="w1", lease=timedelta(hours=1))  # one of the two; the other one waits for another owner
    await store.push(messages(1))
    [fresh] = await claim(store, owner="w1")
    await settle(store, failed(fresh, after=5))
    assert (await nothing(store, owner="w1")).ask_again == clock.now() + timedelta(seconds=5)


async def test_a_killer_takes_no_neighbours_along(store, clock):
    """Ten messages, one of which kills whoever claims it: nine are completed, one is buried."""
    await store.configure(ORDERS, {"max_lost": 4})
    await store.push(messages(10))
    completed: list[bytes] = []
    for _ in range(100):
        taken = await claim(store, owner="w")
        if any(each.payload == b"4" for each in taken):
            clock.move(seconds=31)  # the worker dies with all that it holds
            continue
        await settle(store, *map(done, taken))
        completed += payloads(taken)
        if (await store.depth(ORDERS, "default")).dead and len(completed) == 9:
            break
        clock.move(seconds=2)
    assert sorted(completed) == [str(number).encode() for number in range(10) if number != 4]
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert (letter.payload, letter.reason) == (b"4", "lost")


async def test_giving_back_is_done_in_steps(store, clock):
    await store.push(messages(2500))
    assert len(await claim(store, messages=2500)) == 2500
    clock.move(seconds=30)
    answer = await nothing(store, kinds=frozenset(["other"]))
    if not isinstance(store, OverHttp):  # a broker asks again by itself
        assert (answer.ask_again, answer.contended) == (clock.now(), True)
    taken = [each for _ in range(3) for each in await claim(store, messages=2500)]
    assert sorted(int(each.payload) for each in taken) == list(range(2500))
    assert await answers(store, *map(done, taken)) == ["settled"] * 2500


async def test_settling_at_delivery_meets_one_killer_at_a_time(store, clock):
    await store.push([message(key="a"), message(key="b")])
    await lose(store, clock)
    await lose(store, clock)
    clock.move(seconds=10)
    assert len(await claim(store, owner="w", auto_settle=True)) == 1
    assert len(await claim(store, owner="w", auto_settle=True)) == 1
