"""Names and commits on PostgreSQL: lost answers, housekeeping in between, and the order of locks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from qo.core.lease import AckAnswer, AckByName, Claimed, Complete, Done, Fail, Unit, Verdict
from qo.core.message import TRANSACTION, Dedupe, DedupeScope, Duplicate, NewMessage, Stored
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from tests.conformance.saying import claim, message, want
from tests.postgres import Server, new_schema


@pytest.fixture(scope="module")
def server():
    server = Server(settings={"log_line_prefix": "%a "}).start()
    yield server
    server.remove()


@pytest.fixture
async def engine(server):
    engine = await PostgresEngine.open(replace(read_address(server.url), schema=new_schema(), pool=6))
    yield engine
    await engine.close()


def named(name: str, key: str = "k") -> NewMessage:
    dedupe = Dedupe(name, scope=DedupeScope.LANE, as_queue=True)
    return message("q", key=key, headers={TRANSACTION: name}, dedupe=dedupe)


def said(name: str, report=None, *, key: str = "k", token=None) -> AckByName:
    return AckByName(queue="q", key=key, name=name, report=report or Complete(), token=token)


def deadlocks(server: Server) -> int:
    return int(server.psql("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


@pytest.fixture
def losing(engine, monkeypatch):
    """Have the answer of the next call lost, after its commit."""

    def lose() -> None:
        real = engine.call.pool._run
        lost: list[bool] = []

        async def run(*given):
            answer = await real(*given)
            if not lost:
                lost.append(True)
                raise ConnectionError("lost answer")
            return answer

        monkeypatch.setattr(engine.call.pool, "_run", run)

    return lose


async def test_a_push_whose_answer_is_lost_is_no_duplicate_of_itself(engine, losing):
    await engine.push([named("first")])
    new = named("x")
    losing()
    assert await engine.push([new]) == [Stored(new.id)]
    assert await engine.push([named("x")]) == [Duplicate(new.id)]


async def test_a_commit_whose_answer_is_lost_is_made_once(engine, losing):
    await engine.push([named("x"), named("y")])
    losing()
    [answer] = await engine.ack_by_name([said("x", Fail("no"))])
    assert (answer.answer, answer.verdict) == (AckAnswer.SETTLED, Verdict.RETRYING)
    [standing] = (await engine.named_message("q", "k", "x")).standings
    assert standing.attempts == 1
    await engine.ack_by_name([said("x")])
    [held] = await claim(engine, "q")
    losing()
    [answer] = await engine.ack_by_name([said("y", Fail("no"), token=held.token)])
    assert (answer.answer, answer.verdict) == (AckAnswer.SETTLED, Verdict.RETRYING)


async def test_a_name_that_housekeeping_removes_meanwhile_is_held_all_the_same(engine):
    await engine.push([named("n")])
    table = f"{engine.call.address.schema}.dedupe"
    other = await asyncpg.connect(engine.call.address.dsn)
    try:
        await other.execute(f"UPDATE {table} SET until = now() - interval '1 s'")
        async with other.transaction():
            await other.execute(f"SELECT FROM {table} WHERE key = 'n' FOR UPDATE")
            again = named("n")
            pushing = asyncio.create_task(engine.push([again]))
            await asyncio.sleep(0.3)
            await other.execute(f"DELETE FROM {table} WHERE key = 'n'")
        assert await pushing == [Stored(again.id)]
        assert await engine.push([named("n")]) == [Duplicate(again.id)]
    finally:
        await other.close()


async def test_pushes_and_units_to_a_limited_queue_do_not_wait_for_each_other_in_turns(engine, server):
    await engine.configure("q", {"max_size": 1_000_000})
    before = deadlocks(server)

    async def units(name: str) -> None:
        for number in range(20):
            [answer] = await engine.transact([Unit(pushes=(named(f"{name}{number}"),))])
            assert isinstance(answer, Done)

    async def pushes(name: str) -> None:
        for number in range(20):
            await engine.push([named(f"{name}{number}")])

    await asyncio.gather(*(units(f"u{n}-") for n in range(3)), *(pushes(f"p{n}-") for n in range(3)))
    assert deadlocks(server) == before


async def test_acks_with_and_without_tokens_do_not_wait_for_each_other_in_turns(engine, server):
    await engine.push([named(f"{key}{number}", key) for key in "ab" for number in range(40)])
    before = deadlocks(server)
    for _ in range(30):
        [answer] = await engine.claim([want("q", lanes=2, messages=2, lane_messages=1)])
        assert isinstance(answer, Claimed)
        token = answer.deliveries[0].token
        name = {each.key: each.headers[TRANSACTION] for each in answer.deliveries}
        mixed = [said(name["b"], key="b"), said(name["a"], key="a", token=token)]
        fenced = [said(name["a"], key="a", token=token), said(name["b"], key="b", token=token)]
        await asyncio.gather(engine.ack_by_name(mixed), engine.ack_by_name(fenced), engine.ack_by_name(mixed))
    assert deadlocks(server) == before
