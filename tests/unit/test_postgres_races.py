"""Races between transactions on PostgreSQL, with both interleavings forced: one is held open while the other runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.lane import Start
from qo.core.lease import Done, Unit
from qo.core.message import Dedupe, Duplicate
from qo.stores.postgres import inspect
from qo.stores.postgres.address import read_address
from qo.stores.postgres.claim import NOT_PLAIN, plain_want, plain_wants, wants_text
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.pool import set_up
from qo.stores.postgres.push import push_on
from qo.stores.postgres.schema import in_schema
from qo.stores.postgres.settle import columns_of
from tests.conformance.saying import ORDERS, claim, done, message, messages, payloads, settle, want
from tests.postgres import Server, new_schema


@pytest.fixture
async def store(server) -> AsyncIterator[PostgresEngine]:
    address = replace(read_address(server.url), schema=new_schema(), wake="notify", pool=4)
    engine = await PostgresEngine.open(address)
    yield engine
    await engine.close()


@asynccontextmanager
async def held_open(server: Server) -> AsyncIterator[Any]:
    """A connection in a transaction that commits when the block is left."""
    connection = await asyncpg.connect(server.url)
    await set_up(connection)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def has_to_wait(task: asyncio.Task) -> None:
    """It cannot finish while the other transaction is open."""
    done_tasks, _ = await asyncio.wait([task], timeout=0.3)
    assert not done_tasks


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_push_is_under_way_while_a_claim_finds_its_lane_empty(store, server, key):
    """The claim cannot look under the lane's lock, so it leaves the cursor ready: nothing is lost."""
    await store.push([message(payload=b"first", key=key)])
    async with held_open(server) as connection:
        await push_on(store.call, connection, [message(payload=b"second", key=key)], again=False)
        [first] = await claim(store, auto_settle=True)
        [nothing_yet] = await store.claim([want()])
        assert nothing_yet.ask_again is not None  # soon: something may be there
    assert payloads([first]) == [b"first"]
    assert payloads(await claim(store)) == [b"second"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_claim_marks_its_lane_idle_while_a_push_waits(store, server, key):
    """The push waits for the lane's lock, then sees the cursor idle and wakes it."""
    await store.push([message(payload=b"first", key=key)])
    async with held_open(server) as connection:
        rows = await connection.fetch(
            store.call.sql.claim, wants_text([want(auto_settle=True)]), *NOT_PLAIN, False, None
        )
        assert [bytes(payload) for row in rows for payload in row["payloads"]] == [b"first"]
        pushing = asyncio.create_task(store.push([message(payload=b"second", key=key)]))
        await has_to_wait(pushing)
    await pushing
    assert payloads(await claim(store)) == [b"second"]


async def test_a_group_is_made_while_a_lane_is_being_made(store, server):
    await store.push([message(payload=b"old")])
    async with held_open(server) as connection:
        await push_on(store.call, connection, [message(payload=b"new lane", key="new")], again=False)
        joining = asyncio.create_task(store.create_group([ORDERS], "late", Start()))
        await has_to_wait(joining)
    await joining
    assert sorted(payloads(await claim(store, group="late"))) == [b"new lane", b"old"]


async def test_a_lane_is_made_while_a_group_is_being_made(store, server):
    await store.push([message(payload=b"old")])
    async with held_open(server) as connection:
        await connection.fetchval(store.call.sql.join, ORDERS, "early", "all", None, None)
        pushing = asyncio.create_task(store.push([message(payload=b"new lane", key="new")]))
        await has_to_wait(pushing)
    await pushing
    assert sorted(payloads(await claim(store, group="early"))) == [b"new lane", b"old"]


async def test_a_push_is_under_way_while_the_last_of_its_lane_is_settled(store, server):
    await store.push([message(payload=b"first", key="k")])
    [first] = await claim(store)
    async with held_open(server) as connection:
        await push_on(store.call, connection, [message(payload=b"second", key="k")], again=False)
        await settle(store, done(first))
    assert payloads(await claim(store)) == [b"second"]


async def test_the_last_of_a_lane_is_being_settled_while_a_push_waits(store, server):
    await store.push([message(payload=b"first", key="k")])
    [first] = await claim(store)
    async with held_open(server) as connection:
        await connection.fetch(store.call.sql.settle, *columns_of([done(first)]), None, None, None)
        pushing = asyncio.create_task(store.push([message(payload=b"second", key="k")]))
        await has_to_wait(pushing)
    await pushing
    assert payloads(await claim(store)) == [b"second"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_push_is_under_way_while_a_group_seeks(store, server, key):
    await store.push([message(payload=b"first", key=key)])
    async with held_open(server) as connection:
        await push_on(store.call, connection, [message(payload=b"second", key=key)], again=False)
        seeking = asyncio.create_task(store.seek(ORDERS, "default", 1))
        await has_to_wait(seeking)
    await seeking
    assert payloads(await claim(store)) == [b"second"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_group_is_seeking_while_a_push_waits(store, server, key):
    await store.push([message(payload=b"first", key=key)])
    queue_id, group_id = await inspect.group_of(store.call, ORDERS, "default")
    async with held_open(server) as connection:
        await connection.fetchval(store.call.sql.seek, queue_id, group_id, "new", None, None, None, None)
        pushing = asyncio.create_task(store.push([message(payload=b"second", key=key)]))
        await has_to_wait(pushing)
    await pushing
    assert payloads(await claim(store)) == [b"second"]


async def test_the_same_push_sent_twice_at_once_is_stored_once(store, server):
    """The second waits for the first one's commit and then finds its ids known."""
    batch = messages(5)
    async with held_open(server) as connection:
        await push_on(store.call, connection, batch, again=False)
        again = asyncio.create_task(store.push(batch))
        await has_to_wait(again)
    assert [each.id for each in await again] == [each.id for each in batch]
    assert len(await claim(store)) == 5


async def test_after_a_lost_answer_the_truth_is_looked_up(store):
    """Every commit is made, and its answer lost: what is asked again finds what it did."""
    honest = store.call.pool.call

    async def lossy(work, **more):
        lost = False

        async def first_answer_is_lost(connection, again):
            nonlocal lost
            answer = await work(connection, again)
            if not lost:
                lost = True
                raise ConnectionResetError
            return answer

        return await honest(first_answer_is_lost, **more)

    store.call.pool.call = lossy
    batch = messages(4)
    assert [each.id for each in await store.push(batch)] == [each.id for each in batch]
    taken = await claim(store)
    assert [each.id for each in taken] == [each.id for each in batch]
    [again] = await settle(store, done(taken[0]))
    assert (again.answer, again.verdict) == ("repeated", "completed"), "never settled twice"
    [unit] = await store.transact([Unit(settlements=(done(taken[1]),), pushes=(message(payload=b"next"),))])
    assert isinstance(unit, Done)
    store.call.pool.call = honest
    assert payloads(await claim(store)) == [b"next"]
    assert [each.answer for each in await settle(store, *map(done, taken[2:]))] == ["settled"] * 2


async def test_a_process_that_dies_between_commit_and_hint_has_hinted(store, server):
    """The hint is part of the commit: nobody has to live on to send it."""
    client = Client(LocalBroker(store))
    waiting = asyncio.create_task(client.queue(ORDERS).claim(wait=30))
    await asyncio.sleep(0.2)
    connection = await asyncpg.connect(server.url)
    await set_up(connection)
    await push_on(store.call, connection, [message(payload=b"1")], again=False)
    connection.terminate()
    [delivery] = await asyncio.wait_for(waiting, 5)
    assert delivery.payload == 1


async def test_the_same_new_dedupe_key_pushed_twice_at_once_is_stored_once(store, server):
    """Neither sees a row to lock; the second's waits for the first's, and finds it."""
    await store.push([message()])
    first, second = (message(dedupe=Dedupe("k")) for _ in range(2))
    async with held_open(server) as connection:
        await push_on(store.call, connection, [first], again=False)
        pushing = asyncio.create_task(store.push([second]))
        await has_to_wait(pushing)
    assert await pushing == [Duplicate(first.id)]


async def test_wants_that_come_together_take_nothing_from_a_cursor_that_another_holds(store, server):
    """It may have become ready after they locked what was."""
    await store.push(messages(3))
    await settle(store, *map(done, await claim(store, messages=1)))
    mine, others = want(messages=2), want(messages=2)
    async with held_open(server) as connection:
        taken = await connection.fetch(
            store.call.sql.claim_one, wants_text([mine]), *plain_want(store.call, mine), False, None
        )
        assert len(taken[0]["ids"]) == 2
        serve = in_schema(SERVE_PLAIN, store.call.address.schema)
        rows = await store.call.run(
            "look", lambda c, _: c.fetch(serve, wants_text([others]), *plain_wants(store.call, [others]))
        )
        assert [row["ids"] for row in rows] == [None]
        assert rows[0]["wait"] is not None  # soon


SERVE_PLAIN = """
SELECT (batch).*, wait FROM qo.claim_plain($1, ROW($2, $3, $4, $5, $6, $7, $8, $9, $10)::qo.short_claims,
    ARRAY(SELECT default_group_id FROM qo.queues), clock_timestamp())
"""


async def test_a_transaction_that_commits_after_a_newer_one_is_a_change(store, server):
    async with held_open(server) as connection:
        await connection.fetchval("SELECT pg_current_xact_id()")
        await store.push([message()])
        await store.others_wrote()
        assert not await store.others_wrote()
    assert await store.others_wrote()
