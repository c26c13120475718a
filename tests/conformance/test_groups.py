"""Groups: where they start, seeking, deleting, and dead letters addressed to them."""

from __future__ import annotations

import asyncio

import pytest

from qo.core.errors import Invalid, NotFound
from qo.core.lane import Filter, Start, StartAt
from qo.core.message import MessageId, id_text
from tests.conformance.saying import (
    ORDERS,
    answers,
    buried,
    claim,
    done,
    failed,
    message,
    messages,
    nothing,
    payloads,
    settle,
)

NEW, ALL = Start(StartAt.NEW), Start(StartAt.ALL)


async def test_every_group_sees_every_message(store):
    await store.create_group([ORDERS], "audit", ALL)
    await store.push(messages(2) + messages(2, key="k"))
    for group in ("default", "audit", "late"):
        assert len(await claim(store, group=group)) == 4, group


async def test_one_group_s_failures_are_not_another_s(store, clock):
    await store.push([message(key="k")])
    [mine] = await claim(store, group="mine")
    await settle(store, failed(mine, after=60))
    assert len(await claim(store)) == 1


async def test_new_is_existing_lanes_from_their_tail_and_later_lanes_from_their_start(store):
    await store.push(messages(1, key="old"))
    await store.create_group([ORDERS], "late", NEW)
    await store.push([message(payload=b"a", key="old"), message(payload=b"b", key="new")])
    assert sorted(payloads(await claim(store, group="late"))) == [b"a", b"b"]


async def test_a_group_may_start_at_a_time(store, clock):
    await store.push(messages(2))
    clock.move(seconds=10)
    middle = clock.now()
    await store.push([message(payload=b"later")])
    clock.move(seconds=10)
    await store.create_group([ORDERS], "late", Start(StartAt.TIME, middle))
    assert payloads(await claim(store, group="late")) == [b"later"]


async def test_the_first_registration_wins_even_before_there_is_a_lane(store):
    assert await store.create_group(["empty"], "g", NEW)
    assert not await store.create_group(["empty"], "g", ALL)
    [group] = [each for each in await store.groups("empty") if each.name == "g"]
    assert group.start == NEW


async def test_a_claim_registers_its_group_where_it_says(store):
    await store.push(messages(2))
    await nothing(store, group="late", start=NEW)
    await store.push([message(payload=b"new")])
    assert payloads(await claim(store, group="late")) == [b"new"]


async def test_a_start_in_the_future_is_refused(store, clock):
    ahead = clock.now().replace(year=2030)
    with pytest.raises(Invalid, match="future"):
        await store.create_group([ORDERS], "g", Start(StartAt.TIME, ahead))


async def test_a_group_made_through_a_filter_joins_queues_as_they_appear(store):
    await store.push([message("mail.one", b"1")])
    await store.create_group(Filter(namespace="mail"), "audit", ALL)
    await store.push([message("mail.two", b"2"), message("print.three", b"3")])
    groups = {
        queue: [group.name for group in await store.groups(queue)] for queue in ("mail.one", "mail.two", "print.three")
    }
    assert groups == {"mail.one": ["audit", "default"], "mail.two": ["audit", "default"], "print.three": ["default"]}
    assert sorted(payloads(await claim(store, filter=Filter(namespace="mail"), group="audit"))) == [b"1", b"2"]


async def test_seek_to_start_end_time_and_offset(store, clock):
    await store.push(messages(2))
    clock.move(seconds=10)
    middle = clock.now()
    await store.push([message(payload=b"2"), message(payload=b"3")])
    await settle(store, *map(done, await claim(store)))
    for to, expected in ((ALL, b"0123"), (Start(StartAt.TIME, middle), b"23"), (3, b"3"), (99, b""), (NEW, b"")):
        await store.seek(ORDERS, "default", to)
        assert b"".join(payloads(await claim(store))) == expected


async def test_seek_ends_leases_and_drops_retries_skips_and_attempts(store):
    batch = messages(4, key="k") + messages(4)
    await store.push(batch)
    await store.cancel([batch[3].id, batch[7].id], "default")
    held = await claim(store)
    await settle(store, failed(held[0], after=600))
    assert await store.seek(ORDERS, "default", ALL) == 2
    assert await answers(store, done(held[-1])) == ["lost"]
    again = await claim(store)
    assert len(again) == 8
    assert {each.attempt for each in again} == {1}


async def test_seek_in_one_lane(store):
    await store.push(messages(2, key="a") + messages(2, key="b"))
    await settle(store, *map(done, await claim(store)))
    assert await store.seek(ORDERS, "default", ALL, "a") == 1
    assert {each.key for each in await claim(store)} == {"a"}
    with pytest.raises(NotFound):
        await store.seek(ORDERS, "default", ALL, "no such key")
    with pytest.raises(NotFound):
        await store.seek(ORDERS, "no such group", ALL)


async def test_deleting_a_group_forgets_its_progress(store):
    await store.push(messages(2))
    [*held] = await claim(store, group="audit")
    assert await store.delete_group(ORDERS, "audit")
    assert not await store.delete_group(ORDERS, "audit")
    assert await answers(store, done(held[0])) == ["unknown"]
    assert len(await claim(store, group="audit")) == 2
    with pytest.raises(Invalid, match="default"):
        await store.delete_group(ORDERS, "default")


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_retried_dead_letter_is_a_new_message_for_its_group_alone(store, key):
    await store.create_group([ORDERS], "audit", ALL)
    await store.push([message(payload=b"dead", key=key, kind="mail", headers={"a": "b"})])
    [each] = await claim(store, group="audit")
    await settle(store, buried(each))
    [new] = await store.retry_dead(ORDERS, "audit", [each.id])
    assert new != each.id
    [again] = await claim(store, group="audit")
    assert (again.id, again.retry_of, again.payload, again.kind, again.key) == (new, each.id, b"dead", "mail", key)
    assert (again.attempt, dict(again.headers)) == (1, {"a": "b"})
    assert await store.dead(ORDERS, "audit", None, 10) == []
    assert (await store.depth(ORDERS, "default")).ready == 1
    assert [each.id for each in await claim(store)] == [each.id]
    await store.push([message(payload=b"next", key=key, kind="mail")])
    assert (await store.depth(ORDERS, "audit")).ready == 1


async def test_dead_letters_are_listed_purged_and_retried_by_id(store):
    await store.push(messages(4))
    held = await claim(store)
    await settle(store, *map(buried, held))
    letters = await store.dead(ORDERS, None, None, 2)
    assert [letter.id for letter in letters] == [id_text(each.id) for each in held[:2]]
    rest = await store.dead(ORDERS, "default", letters[-1].id, 10)
    assert [letter.id for letter in rest] == [id_text(each.id) for each in held[2:]]
    assert await store.purge_dead(ORDERS, "default", [held[0].id, held[0].id]) == 1
    assert len(await store.retry_dead(ORDERS, "default", [held[1].id, held[0].id])) == 1
    assert await store.purge_dead(ORDERS, "default", None) == 2
    assert payloads(await claim(store)) == [b"1"]


async def test_in_a_run_what_is_addressed_to_another_group_counts_as_skipped(store, clock):
    await store.create_group([ORDERS], "audit", ALL)
    await store.push([message(payload=b"0", key="k")])
    [dead] = await claim(store, group="audit")
    await settle(store, buried(dead))
    await store.retry_dead(ORDERS, "audit", None)
    await store.push([message(payload=b"2", key="k")])
    run = await claim(store)
    assert payloads(run) == [b"0", b"2"]
    assert (await store.depth(ORDERS, "default")).leased == 2
    await settle(store, done(run[0]))
    clock.move(seconds=31)
    [alone] = await claim(store)  # a loss is counted for the message that was held, not for the one passed
    clock.move(seconds=30)
    assert alone.payload == b"2"
    assert (await nothing(store)).ask_again > clock.now()


async def test_a_filter_claim_by_a_new_group_sees_queues_that_appear_later_from_their_start(store):
    mail = Filter(namespace="mail")
    await nothing(store, filter=mail, group="late", start=NEW)
    await store.push([message("mail.send", b"first")])
    assert payloads(await claim(store, filter=mail, group="late", start=NEW)) == [b"first"]


async def test_an_end_is_told_when_the_default_group_finishes(store):
    told: list[MessageId] = []
    store.listen(lambda hint: told.extend(hint.finished))
    await store.start_listening()
    await store.create_group([ORDERS], "other", Start())
    one = message()
    await store.push([one])
    store.watch([one.id])
    await store.jobs([one.id])
    await settle(store, *map(done, await claim(store, group="other")))
    held = await claim(store)
    await nothing(store)  # by now a hint would have arrived
    assert told == []
    await settle(store, *map(done, held))
    for _ in range(50):
        if told:
            break
        await asyncio.sleep(0.02)
    assert told == [one.id]
