"""What one answer may hold: a claim its `max_bytes`, a page its budget; at least one item each."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from qo.core.errors import Conflict, Invalid, TooLarge
from qo.core.lease import CLAIM_BYTES, KINDS_LIMIT
from qo.core.outcome import Trace
from qo.core.verbs import DeadLettersWanted
from qo.stores.pages import PAGE_BYTES
from tests.conformance.saying import ORDERS, buried, claim, done, failed, message, payloads, settle, want

KIB = 1024
MIB = 1024 * KIB
LARGE = b"x" * (MIB - 10)


def large(count: int, size: int = 1000, **options) -> list:
    return [message(payload=bytes([48 + number % 10]) * size, **options) for number in range(count)]


def sizes(deliveries) -> int:
    return sum(len(each.payload) for each in deliveries)


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"headers": {"a": "b" * 90}}, {"ttl": timedelta(hours=1)}])
async def test_a_claim_takes_no_more_bytes_than_it_wants(store, options):
    await store.push(large(10, **options))
    first = await claim(store, messages=10, max_bytes=3500)
    assert len(first) == 3
    await settle(store, *map(done, first))
    second = await claim(store, messages=10, max_bytes=3500)
    assert len(second) == 3
    await settle(store, *map(done, second))
    assert len(await claim(store, messages=10)) == 4


@pytest.mark.parametrize("key", [None, "k"])
async def test_one_message_may_be_larger_than_a_claim_wants(store, key):
    await store.push([message(payload=b"a" * 5000, key=key), message(payload=b"b" * 10, key=key)])
    first = await claim(store, messages=10, max_bytes=1)
    assert payloads(first) == [b"a" * 5000]
    await settle(store, *map(done, first))
    assert payloads(await claim(store, messages=10, max_bytes=1)) == [b"b" * 10]


async def test_many_lanes_share_the_bytes_of_a_claim(store):
    await store.push([message(payload=b"%d" % number * 1000, key=f"k{number}") for number in range(10)])
    heads = await claim(store, messages=10, lane_messages=1, max_bytes=4500)
    assert len(heads) == 5, "a lane gives one message at least, as long as bytes are left"
    others = await claim(store, messages=10, max_bytes=2000)
    assert len(others) == 2
    assert len(await claim(store, messages=10)) == 3


async def test_kinds_and_retries_share_the_bytes_of_a_claim(store):
    await store.push([*large(3, kind="a"), *large(3, kind="b")])
    taken = await claim(store, messages=3)
    await settle(store, *(failed(each, after=0) for each in taken))
    got: list = []
    while more := await claim(store, messages=10, max_bytes=2500):
        assert sizes(more) <= 2500 + 1000
        got += more
    assert len(got) == 6


async def test_what_a_claim_left_for_its_bytes_is_there_for_the_next_at_once(store):
    await store.push(large(4))
    await claim(store, messages=10, max_bytes=1500)
    [answer] = await store.claim([want(messages=10, max_bytes=1500)])
    assert len(answer.deliveries) == 1


async def test_order_is_kept_across_claims_that_are_cut(store):
    await store.push([message(payload=b"%03d" % number * 100, key="k") for number in range(20)])
    seen: list[bytes] = []
    while taken := await claim(store, messages=100, max_bytes=1000):
        seen += payloads(taken)
        await settle(store, *map(done, taken))
    assert seen == sorted(seen)
    assert len(seen) == 20


async def test_the_default_is_eight_mebibytes(store):
    assert CLAIM_BYTES == 8 * MIB
    for _ in range(3):
        await store.push([message(payload=LARGE) for _ in range(4)])
    assert len(await claim(store, messages=100)) == 8


@pytest.mark.parametrize("given", [0, -1, 2**31, 1.5])
def test_a_budget_that_makes_no_sense_is_refused(given):
    with pytest.raises(Invalid, match="whole number from 1 to"):
        want(max_bytes=given)


def test_too_many_kinds_are_refused():
    with pytest.raises(Invalid, match=f"at most {KINDS_LIMIT} kinds, not {KINDS_LIMIT + 1}"):
        want(kinds=frozenset(f"k{number}" for number in range(KINDS_LIMIT + 1)))


# Pages


async def test_a_page_of_jobs_ends_where_its_bytes_do_and_the_next_goes_on(store):
    assert PAGE_BYTES == 8 * MIB
    for _ in range(3):
        await store.push([message(payload=LARGE) for _ in range(4)])
    seen: list[str] = []
    pages = []
    while page := await store.list_jobs(ORDERS, None, seen[-1] if seen else None, 100):
        pages.append(len(page))
        seen += [each.id for each in page]
    assert pages == [8, 4]
    assert all(one > other for one, other in pairwise(seen))


async def test_a_page_of_jobs_in_one_state_ends_where_its_bytes_do(store):
    for _ in range(3):
        await store.push([message(payload=LARGE) for _ in range(4)])
    await settle(store, *map(done, await claim(store, messages=2)))
    assert len(await store.list_jobs(ORDERS, "queued", None, 100)) == 8
    assert len(await store.list_jobs(ORDERS, "succeeded", None, 100)) == 2


async def test_jobs_by_their_ids_must_fit_into_one_answer(store):
    ids = []
    for _ in range(3):
        batch = [message(payload=LARGE) for _ in range(4)]
        await store.push(batch)
        ids += [each.id for each in batch]
    assert len(await store.jobs(ids[:8])) == 8
    with pytest.raises(TooLarge, match="ask for fewer at a time, 8 fit"):
        await store.jobs(ids)


async def test_a_page_of_dead_letters_ends_where_its_bytes_do_and_the_next_goes_on(store):
    for _ in range(3):
        await store.push([message(payload=LARGE) for _ in range(4)])
    while taken := await claim(store, messages=100):
        await settle(store, *map(buried, taken))
    first = await store.dead(ORDERS, None, None, 100)
    second = await store.dead(ORDERS, None, first[-1].id, 100)
    assert (len(first), len(second)) == (8, 4)
    assert await store.dead(ORDERS, None, second[-1].id, 100) == []


@pytest.fixture
def engine(store):
    """Of Queen's wire: not on our own."""
    return getattr(store, "_engine", store)


async def test_dead_letters_and_traces_of_queen_s_wire_end_where_their_bytes_do(engine, clock):
    for number in range(9):
        data = b'"%b"' % (b"%d" % number * (MIB - 10))
        trace = Trace(
            id=f"t{number}", queue=ORDERS, key="k", name="n", group="default", names=("a",), event="info", data=data,
            created_at=clock.now(),
        )  # fmt: skip
        await engine.add_trace(trace)
    assert [each.id for each in await engine.traces(ORDERS, "k", "n")] == [f"t{number}" for number in range(8)]
    found, count = await engine.traces_by_name("a", 100, 0)
    assert ([each.id for each in found], count) == ([f"t{number}" for number in range(8, 0, -1)], 9)
    for _ in range(3):
        await engine.push([message(payload=LARGE) for _ in range(4)])
    while taken := await claim(engine, messages=100):
        await settle(engine, *map(buried, taken))
    letters, count = await engine.dead_letters(DeadLettersWanted(queue=ORDERS, limit=100, offset=0))
    assert (len(letters), count) == (8, 12)
    rest, _ = await engine.dead_letters(DeadLettersWanted(queue=ORDERS, limit=100, offset=8))
    assert len(rest) == 4


# Tokens


async def test_a_claim_that_brings_the_token_of_another_is_refused(store):
    await store.push([message(key="a"), message(key="b"), message(), message()])
    one = want(messages=1, named=True)
    [first] = await store.claim([one])
    with pytest.raises(Conflict, match="used before"):
        await store.claim([one])
    [rest] = await store.claim([want(messages=10)])
    assert len(rest.deliveries) == 3, "the refused one took nothing"
    assert first.deliveries[0].token == one.token


async def test_a_claim_on_that_brings_the_token_of_another_is_refused(store):
    await store.push([message(), message(), message()])
    one = want(messages=1, named=True)
    [first] = await store.claim([one])
    with pytest.raises(Conflict, match="used before"):
        await store.settle([done(first.deliveries[0])], [one])
    assert [each.answer for each in await settle(store, done(first.deliveries[0]))] == ["settled"]
