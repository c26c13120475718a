"""push: lanes, intake, dedupe, nonces."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from qo.broker.broker import LocalBroker
from qo.core.errors import TooLarge
from qo.core.message import Dedupe, DedupeScope, Duplicate, NewMessage, Refused, Stored, id_text, message_ids
from qo.testing.clock import START
from tests.conformance.remote import OverHttp
from tests.conformance.saying import ORDERS, buried, claim, done, message, messages, nothing, payloads, settle

WINDOW = timedelta(seconds=60)


async def test_answers_stand_in_the_order_of_the_batch(store):
    batch = [message(key=key) for key in "abcab"]
    assert await store.push(batch) == [Stored(each.id) for each in batch]


async def test_an_empty_batch_is_fine(store):
    assert await store.push([]) == []


async def test_a_refused_message_fails_alone(store):
    await store.configure(ORDERS, {"max_payload": 10})
    small, large, last = message(payload=b"1"), message(payload=b"x" * 11), message(payload=b"2")
    first, refused, third = await store.push([small, large, last])
    assert (first, third) == (Stored(small.id), Stored(last.id))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, TooLarge)
    assert "11 bytes" in str(refused.error)
    assert "max_payload" in str(refused.error)
    assert payloads(await claim(store)) == [b"1", b"2"]


async def test_the_default_limit_is_a_mebibyte(store):
    fits, too_large = message(payload=b"x" * 1024 * 1024), message(payload=b"x" * (1024 * 1024 + 1))
    stored, refused = await store.push([fits, too_large])
    assert isinstance(stored, Stored)
    assert isinstance(refused, Refused)


async def test_a_message_pushed_twice_under_its_id_is_stored_once(store):
    once = message()
    await store.push([once])
    assert await store.push([once]) == [Stored(once.id)]
    assert len(await claim(store)) == 1


async def test_a_batch_with_a_nonce_is_stored_once(store):
    batch = [message(dedupe=Dedupe("k", WINDOW)), message(dedupe=Dedupe("k", WINDOW))]
    first = await store.push(batch, nonce="n")
    assert isinstance(first[1], Duplicate)
    assert await store.push(batch, nonce="n") == first
    assert len(await claim(store)) == 1


async def test_a_delayed_message_enters_when_due_after_what_came_before(store, clock):
    await store.push([message(payload=b"late", key="k", due_at=clock.now() + timedelta(seconds=10))])
    await store.push([message(payload=b"now", key="k")])
    assert (await store.depth(ORDERS, "default")).delayed == 1
    clock.move(seconds=10)
    assert payloads(await claim(store)) == [b"now", b"late"]


async def test_a_push_to_a_keyed_lane_first_brings_in_what_is_due(store, clock):
    await store.push([message(payload=b"due", key="k", due_at=clock.now() + timedelta(seconds=10))])
    clock.move(seconds=11)
    await store.push([message(payload=b"pushed later", key="k")])
    assert payloads(await claim(store)) == [b"due", b"pushed later"]


async def test_intake_enters_in_order_of_due_time_and_id(store, clock):
    due = clock.now() + timedelta(seconds=10)
    await store.push(
        [
            message(payload=b"3", due_at=due + timedelta(seconds=1)),
            message(payload=b"1", due_at=due),
            message(payload=b"2", due_at=due),
        ]
    )
    clock.move(seconds=60)
    assert payloads(await claim(store)) == [b"1", b"2", b"3"]


async def test_a_due_time_in_the_past_is_now(store, clock):
    await store.push([message(due_at=clock.now() - timedelta(days=1))])
    assert len(await claim(store)) == 1


@pytest.mark.parametrize("delay", [None, 5])
async def test_a_unique_key_holds_until_the_first_is_finished(store, clock, delay):
    due = None if delay is None else clock.now() + timedelta(seconds=delay)
    first = message(dedupe=Dedupe("k"), due_at=due)
    await store.push([first])
    assert await store.push([message(dedupe=Dedupe("k"))]) == [Duplicate(first.id)]
    clock.move(seconds=10)
    [each] = await claim(store)
    assert await store.push([message(dedupe=Dedupe("k"))]) == [Duplicate(first.id)]
    await settle(store, done(each))
    [answer] = await store.push([message(dedupe=Dedupe("k"))])
    assert isinstance(answer, Stored)


async def test_a_unique_key_is_free_after_death_cancel_and_removal(store):
    for ending in ("bury", "cancel", "purge"):
        first = message(dedupe=Dedupe("k"))
        assert isinstance((await store.push([first]))[0], Stored), ending
        if ending == "bury":
            [each] = await claim(store)
            await settle(store, buried(each))
        elif ending == "cancel":
            await store.cancel([first.id], "default")
        else:
            await store.purge(ORDERS)
    assert isinstance((await store.push([message(dedupe=Dedupe("k"))]))[0], Stored)


async def test_a_unique_key_is_held_while_the_first_waits_for_a_retry(store, clock):
    first = message(dedupe=Dedupe("k"))
    await store.push([first])
    await claim(store)
    clock.move(seconds=31)
    assert await store.push([message(dedupe=Dedupe("k"))]) == [Duplicate(first.id)]


async def test_a_window_holds_for_its_time_whatever_became_of_the_first(store, clock):
    first = message(dedupe=Dedupe("k", WINDOW))
    await store.push([first])
    [each] = await claim(store)
    await settle(store, done(each))
    clock.move(seconds=59)
    assert await store.push([message(dedupe=Dedupe("k", WINDOW))]) == [Duplicate(first.id)]
    clock.move(seconds=1)
    [answer] = await store.push([message(dedupe=Dedupe("k", WINDOW))])
    assert isinstance(answer, Stored)


async def test_a_key_holds_per_queue_or_per_lane(store):
    lane = Dedupe("k", None, DedupeScope.LANE)
    one, other, again = (message(key=key, dedupe=lane) for key in "aba")
    assert await store.push([one, other, again]) == [Stored(one.id), Stored(other.id), Duplicate(one.id)]
    whole = message(key="c", dedupe=Dedupe("k"))
    assert await store.push([whole, message(key="d", dedupe=Dedupe("k"))]) == [Stored(whole.id), Duplicate(whole.id)]
    assert isinstance((await store.push([message("elsewhere", dedupe=Dedupe("k"))]))[0], Stored)


async def test_of_two_in_one_batch_exactly_one_is_stored(store):
    one, two = message(dedupe=Dedupe("k")), message(dedupe=Dedupe("k"))
    assert await store.push([one, two]) == [Stored(one.id), Duplicate(one.id)]


async def test_housekeeping_forgets_keys_that_no_longer_hold(store, clock):
    await store.push([message(dedupe=Dedupe("w", WINDOW)), message(dedupe=Dedupe("u"))])
    await settle(store, *map(done, await claim(store)))
    clock.move(hours=2)
    await store.tidy()
    again = [message(dedupe=Dedupe("w", WINDOW)), message(dedupe=Dedupe("u"))]
    assert await store.push(again) == [Stored(each.id) for each in again]


async def test_lanes_of_one_queue_share_nothing_with_another_s(store):
    await store.push(messages(2, key="k"))
    await store.push([message("other", b"x", key="k")])
    assert payloads(await claim(store, "other")) == [b"x"]
    assert payloads(await claim(store)) == [b"0", b"1"]
    await nothing(store)


async def test_a_delayed_push_repeated_after_it_fell_due_is_stored_once(store, clock):
    once = message(due_at=clock.now() + timedelta(seconds=1))
    await store.push([once])
    clock.move(seconds=2)
    assert await store.push([once]) == [Stored(once.id)]
    assert [each.id for each in await claim(store)] == [once.id]


async def test_an_id_twice_in_one_batch_is_stored_once(store):
    twice, other = message(), message()
    answers = await store.push([twice, other, twice])
    assert answers == [Stored(twice.id), Stored(other.id), Stored(twice.id)]
    assert [each.id for each in await claim(store)] == [twice.id, other.id]


def under(id: bytes, payload: bytes, **options) -> NewMessage:
    return NewMessage(id, ORDERS, payload, **options)


SAYINGS = {
    "plain": {},
    "keyed": {"key": "k"},
    "delayed": {"delay": timedelta(seconds=1)},
    "living": {"ttl": timedelta(hours=1)},
    "with headers": {"headers": {"a": "b"}},
    "deduplicated": {"dedupe": Dedupe("d", WINDOW, DedupeScope.LANE)},
    "named": {"key": "k", "dedupe": Dedupe("d", as_queue=True, scope=DedupeScope.LANE)},
}


@pytest.mark.parametrize("options", SAYINGS.values(), ids=SAYINGS)
async def test_a_repeat_inside_a_batch_counts_as_equal_only_if_it_is(store, clock, options):
    """As it is when requests that bring one id are gathered into one batch."""
    if isinstance(store, OverHttp):
        pytest.skip("a request that has one id twice is refused as a whole; requests are gathered in the next test")
    first, second = message_ids(1_700_000_000_000, 1 << 40, 2)
    batch = [
        under(first, b"1", **options),
        under(second, b"2", **options | {"dedupe": None}),
        under(second, b"2", **options | {"dedupe": None}),
        under(second, b"another payload", **options),
        under(first, b"1", **options),
        under(first, b"1", **options | {"key": "another key"}),
    ]
    answers = await store.push(batch)
    assert answers[:3] == [Stored(first), Stored(second), Stored(second)]
    assert isinstance(answers[3], Refused)
    assert answers[3].error.field == "id"
    assert answers[4] == Stored(first)
    assert isinstance(answers[5], Refused)
    clock.move(seconds=2)
    assert sorted(payloads(await claim(store))) == [b"1", b"2"]


async def test_of_requests_with_one_id_one_is_stored_and_the_others_are_told(store, clock):
    """Some are gathered into one batch, some follow it."""
    [id] = message_ids(1_700_000_000_000, 3 << 40, 1)
    before = [message(payload=b"before") for _ in range(3)]
    requests = [*before, *(under(id, b"%d" % number) for number in range(20))]
    broker = store if isinstance(store, OverHttp) else LocalBroker(store, clock=clock)
    answers = await asyncio.gather(*(broker.push([each]) for each in requests))
    told = [each.payload for each, [answer] in zip(requests, answers, strict=True) if answer == Stored(id)]
    assert [each.payload for each in await claim(store) if each.id == id] == told
    assert len(told) == 1


async def test_an_id_that_is_the_last_of_a_run_and_comes_again_is_stored_once(store):
    if isinstance(store, OverHttp):
        pytest.skip("a request that has one id twice is refused as a whole")
    first, second = message_ids(1_700_000_000_000, 4 << 40, 2)
    answers = await store.push([under(first, b"1"), under(second, b"2"), under(second, b"another payload")])
    assert answers[:2] == [Stored(first), Stored(second)]
    assert isinstance(answers[2], Refused)
    assert payloads(await claim(store)) == [b"1", b"2"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_messages_that_enter_in_another_order_than_their_ids_are_all_found(store, clock, key):
    """Others that were pushed in between have ids in between, and are in other lanes."""
    ids = message_ids(1_700_000_000_000, 77 << 40, 6)
    after = {0: 1, 4: 2, 2: 3, 5: 4}

    def of(number: int) -> NewMessage:
        if number not in after:
            return NewMessage(id=ids[number], queue="other", payload=b"1")
        due_at = START + timedelta(seconds=after[number])
        return NewMessage(id=ids[number], queue=ORDERS, payload=b"1", key=key, due_at=due_at)

    await store.push([of(number) for number in range(6)])
    clock.move(seconds=10)
    assert [each.id for each in await claim(store)] == [ids[number] for number in (0, 4, 2, 5)]
    jobs = await store.jobs(ids)
    assert [None if job is None else job.id for job in jobs] == [id_text(each) for each in ids]
