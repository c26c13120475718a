"""The promises of the design, one by one. Each holds on every engine."""

from __future__ import annotations

from datetime import timedelta

from qo.core.lease import Claimed, Lost
from qo.core.message import Stored
from tests.conformance.saying import (
    ORDERS,
    answers,
    claim,
    done,
    extension,
    failed,
    message,
    messages,
    nothing,
    payloads,
    settle,
    want,
)


async def test_1_a_push_is_answered_when_it_can_be_claimed(store):
    [answer] = await store.push([message()])
    assert isinstance(answer, Stored)
    [delivered] = await claim(store)
    assert delivered.id == answer.id


async def test_2_what_a_dead_consumer_held_comes_back(store, clock):
    await store.push(messages(3) + messages(3, key="k"))
    held = await claim(store)
    assert len(held) == 6
    clock.move(seconds=31)
    again = await claim(store)
    assert sorted(payloads(again)) == [b"0", b"0", b"1", b"2"]  # of the keyed lane, the first alone
    assert {each.attempt for each in again} == {1}


async def test_3_settling_at_delivery_is_at_most_once(store, clock):
    await store.push(messages(2))
    assert len(await claim(store, auto_settle=True)) == 2
    clock.move(hours=1)
    assert (await nothing(store)).ask_again is None


async def test_4_live_leases_never_overlap(store):
    await store.push(messages(10) + messages(10, key="k"))
    claims = await store.claim([want(messages=4) for _ in range(6)])
    taken = [(each.lane, each.offset) for answer in claims if isinstance(answer, Claimed) for each in answer.deliveries]
    assert len(taken) == len(set(taken))
    keyed = [answer for answer in claims if isinstance(answer, Claimed) and any(each.key for each in answer.deliveries)]
    assert len(keyed) == 1


async def test_5_only_the_live_token_settles(store, clock):
    await store.push([message()])
    [lost] = await claim(store)
    clock.move(seconds=31)
    [held] = await claim(store)
    assert await answers(store, done(lost)) == ["lost"]
    assert await store.extend([extension(lost)]) == [Lost()]
    assert await answers(store, done(held)) == ["settled"]


async def test_5_a_lease_past_its_deadline_is_lost_even_if_nobody_took_it(store, clock):
    await store.push([message()])
    [late] = await claim(store)
    clock.move(seconds=30)
    assert await answers(store, done(late)) == ["lost"]
    assert len(await claim(store)) == 1


async def test_5_what_was_settled_is_repeated_with_its_first_verdict(store, clock):
    await store.push(messages(2))
    first, second = await claim(store)
    await settle(store, done(first))
    [again] = await settle(store, failed(first))
    assert (again.answer, again.verdict) == ("repeated", "completed")
    clock.move(seconds=31)
    [after_expiry] = await settle(store, failed(first))
    assert (after_expiry.answer, after_expiry.verdict) == ("repeated", "completed")
    assert await answers(store, done(second)) == ["lost"]


async def test_5_ten_minutes_after_its_end_a_token_is_unknown(store, clock):
    await store.push([message()])
    [delivered] = await claim(store)
    await settle(store, done(delivered))
    clock.move(minutes=9)
    await store.tidy()
    assert await answers(store, done(delivered)) == ["repeated"]
    clock.move(minutes=1)
    await store.tidy()
    assert await answers(store, done(delivered)) == ["unknown"]


async def test_6_a_keyed_lane_is_delivered_in_order_and_not_beyond_a_run(store):
    await store.push(messages(5, key="k"))
    run = await claim(store, messages=3)
    assert payloads(run) == [b"0", b"1", b"2"]
    await nothing(store)
    await settle(store, done(run[2]))
    assert payloads(await claim(store)) == [b"3", b"4"]


async def test_7_offsets_are_dense_and_never_given_twice(store):
    await store.push(messages(3))
    await store.purge(ORDERS)
    await store.push(messages(2))
    assert [each.offset for each in await claim(store)] == [3, 4]


async def test_8_the_store_s_clock_decides_what_is_due(store, clock):
    await store.push([message(due_at=clock.now() + timedelta(seconds=10))])
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=10)
    clock.move(seconds=9.999)
    await nothing(store)
    clock.move(seconds=0.001)
    assert len(await claim(store)) == 1


async def test_8_entry_times_never_run_backwards(store, clock):
    await store.push([message()])
    clock.move(seconds=-60)
    await store.push([message()])
    first, second = await claim(store)
    assert first.entered_at == second.entered_at


async def test_9_every_commit_that_makes_something_claimable_hints(store):
    hints: list[object] = []
    store.listen(lambda hint: hints.append(hint.queues))
    await store.start_listening()
    await store.push([message()])
    [delivered] = await claim(store)
    hints.clear()
    await settle(store, failed(delivered, after=0))
    await store.claim([want()])  # by now the hint has arrived
    assert frozenset([ORDERS]) in hints


async def test_10_an_empty_store_has_nothing_to_ask_again_for(store, clock):
    await store.push(messages(3) + messages(3, key="k"))
    delivered = await claim(store)
    await settle(store, *map(done, delivered))
    assert (await nothing(store)).ask_again is None
    for _ in range(10):  # the last day's messages are removed, then there is nothing to remove
        again = await store.tidy()
        if again is None:
            break
        clock.move_to(max(again, clock.now()))
    assert again is None
