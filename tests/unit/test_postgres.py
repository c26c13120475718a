"""PostgreSQL as a store: silence, hints between processes, and a database that goes away."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.errors import Incompatible, Invalid, Unavailable
from qo.stores.postgres import schema
from qo.stores.postgres.address import Address, read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.migrating import migrate
from tests.conformance.saying import answers, claim, done, message
from tests.postgres import QUICK, Server, new_schema

SILENT_SECONDS = float(os.environ.get("QO_SILENT_SECONDS", "10"))
HOUSEKEEPING_SECONDS = 60
RETRY_SECONDS = float(os.environ.get("QO_RETRY_SECONDS", "1.5"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(settings={**QUICK, "log_statement": "all", "log_duration": "off"}).start()
    yield server
    server.remove()


@pytest.fixture
def url(server) -> str:
    return f"{server.url}&schema={new_schema()}"


@asynccontextmanager
async def opened(url: str, **changes) -> AsyncIterator[tuple[Client, PostgresEngine]]:
    """A client of its own, as another process would have one."""
    engine = await PostgresEngine.open(replace(read_address(url), **changes))
    client = Client(LocalBroker(engine))
    try:
        yield client, engine
    finally:
        await client.close()


def statements(server: Server, since: int) -> list[str]:
    """Our statements in the server's log, from a place in it on."""
    with server.log.open("rb") as log:
        log.seek(since)
        text = log.read().decode(errors="replace")
    return [line for line in text.splitlines() if re.search(r"\] qo (LOG:  (statement|execute))", line)]


async def test_idle_is_silent(server, url):
    """Two processes, waiters on both, a thousand jobs with failures through three groups done: not a statement."""
    async with opened(url) as (one, _), opened(url) as (two, _):
        queue = one.queue("jobs")
        await queue.configure(retry={"attempts": 3, "delay": 0.01}, max_lost=0)
        for group in ("second", "third"):
            assert not await queue.group(group).claim()  # a group begins with its first claim
        await queue.push_many([qo.Message(n, key=None if n % 2 else f"k{n % 7}") for n in range(1000)])
        for group in ("default", "second", "third"):
            await finish_all(one.queue("jobs").group(group), failing=True)
        waiting = [asyncio.create_task(client.queue("jobs").claim(wait=600)) for client in (one, two) for _ in range(3)]
        waiting += [asyncio.create_task(two.queue("jobs").group("second").claim(wait=600))]
        await asyncio.sleep(1)
        if SILENT_SECONDS > HOUSEKEEPING_SECONDS / 2:  # what was finished is looked at once, a minute later
            await asyncio.sleep(HOUSEKEEPING_SECONDS + 5)
        began = server.log.stat().st_size
        await asyncio.sleep(SILENT_SECONDS)
        said = statements(server, began)
        assert said == []
        assert len(statements(server, 0)) > 100  # the log does show what is said
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def finish_all(queue, *, failing: bool) -> None:
    """Complete everything; every tenth message fails once first."""
    while True:
        deliveries = await queue.claim(100, wait=0.5)
        if not deliveries:
            return
        for delivery in deliveries:
            try:
                if failing and delivery.payload % 10 == 0 and delivery.attempt == 1:
                    await delivery.fail("once")
                else:
                    await delivery.complete()
            except qo.LeaseLost:
                pass  # given back behind a failure of its key


async def test_a_retry_wakes_a_waiter_exactly_when_it_is_due(server, url):
    async with opened(url) as (one, _), opened(url) as (two, _):
        await one.queue("q").push(1)
        [delivery] = await one.queue("q").claim()
        await delivery.fail("later", after=RETRY_SECONDS)
        began = time.monotonic()
        asked = server.log.stat().st_size
        [again] = await two.queue("q").claim(wait=60)
        assert again.attempt == 2
        assert time.monotonic() - began >= RETRY_SECONDS - 0.2
        claims = [line for line in statements(server, asked) if ".claim(" in line]
        assert len(claims) <= 4  # it slept until then: asked, and asked again when it was due


@pytest.mark.parametrize("same_process", [True, False])
async def test_who_waits_for_a_key_is_woken_when_its_run_is_settled(url, same_process):
    """Also if the next message is of the same kind, and whoever settles does not ask on."""
    async with opened(url) as (one, _), opened(url) as (two, _):
        other = one if same_process else two
        for number in range(10):
            await one.queue("q").push(number, key="k")
        for number in range(10):
            [delivery] = await one.queue("q").claim(lease=60)
            assert delivery.payload == number
            waiting = asyncio.create_task(other.queue("q").claim(wait=30))
            await asyncio.sleep(0.02)
            await delivery.complete()
            if number < 9:
                [following] = await asyncio.wait_for(waiting, 10)
                assert following.payload == number + 1
                await following.release()
            else:
                waiting.cancel()


async def test_a_push_wakes_a_waiter_in_another_process(url):
    async with opened(url) as (one, _), opened(url) as (two, _):
        for number in range(20):
            waiting = asyncio.create_task(two.queue("q").claim(wait=30))
            await asyncio.sleep(0.01)
            await one.queue("q").push(number)
            [delivery] = await asyncio.wait_for(waiting, 5)
            assert delivery.payload == number
            await delivery.complete()


async def test_a_result_is_told_to_another_process(url):
    async with opened(url) as (one, _), opened(url) as (two, _):
        job = await one.queue("q").submit("add", [1, 2])
        waiting = asyncio.create_task(job.result(timeout=30))
        await asyncio.sleep(0.1)
        [delivery] = await two.queue("q").claim(wait=5)
        await delivery.complete(3)
        assert await asyncio.wait_for(waiting, 5) == 3


async def test_where_nobody_can_be_told_the_broker_polls(url):
    async with opened(url, wake="poll") as (one, engine), opened(url) as (two, _):
        assert engine.must_poll
        waiting = asyncio.create_task(one.queue("q").claim(wait=30))
        await asyncio.sleep(0.2)
        await two.queue("q").push("hello")
        [delivery] = await asyncio.wait_for(waiting, 15)
        assert delivery.payload == "hello"


async def test_polling_backs_off_while_nothing_happens(server, url):
    async with opened(url, wake="poll") as (client, _):
        asked = server.log.stat().st_size
        assert await client.queue("q").claim(wait=3) == []
        polls = [line for line in statements(server, asked) if "pg_current_snapshot" in line]
        assert 2 <= len(polls) <= 12  # at its first interval all the time it would be thirty


async def test_prepared_statements_are_optional(server, url):
    async with opened(url, pooler="transaction") as (client, _):
        queue = client.queue("q")
        await queue.push_many([qo.Message(n) for n in range(5)])
        deliveries = await queue.claim(5)
        await queue.complete_many(deliveries)
        assert [delivery.payload for delivery in deliveries] == [0, 1, 2, 3, 4]
    assert "PREPARE" not in server.log.read_text(errors="replace")


# A database that goes away


async def test_a_restart_is_survived_by_calls_and_by_waiters(caplog):
    caplog.set_level(logging.CRITICAL, "qo.postgres")
    own = Server().start()
    try:
        async with opened(own.url) as (one, _), opened(own.url) as (two, _):
            await one.queue("q").push("before")
            [before] = await one.queue("q").claim(lease=60)
            waiting = asyncio.create_task(two.queue("q").claim(wait=60))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(own.stop, "immediate")
            pushing = asyncio.create_task(one.queue("q").push("after"))
            settling = asyncio.create_task(before.complete())
            await asyncio.sleep(0.3)
            await asyncio.to_thread(own.start)
            await asyncio.wait_for(asyncio.gather(pushing, settling), 30)
            [after] = await asyncio.wait_for(waiting, 30)
            assert after.payload == "after"
    finally:
        own.remove()


KILL_SOME = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'qo' AND random() < 0.5
"""


async def test_a_killed_backend_loses_nothing_and_stores_once(server, url):
    """Backends die under a load of pushes, claims and settles; every message is stored and completed once."""
    async with opened(url, pool=3) as (client, _):
        queue = client.queue("q")
        stop = asyncio.Event()

        async def kill() -> None:
            killer = await asyncpg.connect(server.url)
            while not stop.is_set():
                await killer.execute(KILL_SOME)
                await asyncio.sleep(0.05)
            await killer.close()

        killing = asyncio.create_task(kill())
        seen: list[tuple[int, int]] = []
        for number in range(60):
            await queue.push_many([qo.Message([number, each]) for each in range(3)])
            for delivery in await queue.claim(3):
                seen.append(tuple(delivery.payload))
                await delivery.complete()
        stop.set()
        await killing
        while deliveries := await queue.claim(100):
            seen += [tuple(delivery.payload) for delivery in deliveries]
            await queue.complete_many(deliveries)
        assert sorted(seen) == [(number, each) for number in range(60) for each in range(3)]


async def test_too_many_connections_are_waited_for():
    own = Server(settings={**QUICK, "max_connections": "8", "superuser_reserved_connections": "0"}).start()
    try:
        async with opened(own.url, pool=2, wake="poll") as (client, _):
            await client.queue("q").push(1)
        others = [await asyncpg.connect(own.url) for _ in range(8)]
        opening = asyncio.create_task(PostgresEngine.open(read_address(f"{own.url}&wake=poll")))
        await asyncio.sleep(0.3)
        assert not opening.done()
        for other in others:
            await other.close()
        engine = await asyncio.wait_for(opening, 10)
        await engine.close()
    finally:
        own.remove()


async def test_nobody_there_is_unavailable_after_the_deadline(tmp_path):
    engine = PostgresEngine(Address(dsn=f"postgresql://postgres@/postgres?host={tmp_path}"))
    engine.call.pool.deadline_seconds = 0.3
    with pytest.raises(Unavailable, match="cannot be reached"):
        await engine.queue("q")
    await engine.close()


async def test_a_statement_timeout_and_a_deadlock_are_tried_again(url):
    async with opened(url) as (_, engine):
        failures = [asyncpg.QueryCanceledError("statement timeout"), asyncpg.DeadlockDetectedError("deadlock")]

        async def work(connection, again) -> str:
            assert not again
            if failures:
                raise failures.pop()
            return "done"

        assert await engine.call.pool.call(work) == "done"


# Migrations


async def test_many_that_start_at_once_migrate_once(url):
    engines = await asyncio.gather(*(PostgresEngine.open(read_address(f"{url}&pool=1")) for _ in range(8)))
    try:
        applied = await engines[0].call.value(
            "look", schema.in_schema("SELECT count(*) FROM qo.migrations", engines[0].call.address.schema)
        )
        assert applied == len(schema.migrations())
    finally:
        for engine in engines:
            await engine.close()


async def test_a_dry_run_changes_nothing(server, url):
    address = read_address(url)
    names = [migration.name for migration in schema.migrations()]
    assert await migrate(address, dry_run=True) == names
    assert server.psql(f"SELECT count(*) FROM pg_namespace WHERE nspname = '{address.schema}'") == "0"
    assert await migrate(address, dry_run=False) == names
    assert await migrate(address, dry_run=False) == []


async def test_a_schema_of_an_earlier_version_is_brought_forward(server, url, monkeypatch):
    address = read_address(url)
    await migrate(address, dry_run=False)
    server.psql(
        f"INSERT INTO {address.schema}.queues (name, namespace, task, rules, created_at) "
        "VALUES ('old', 'old', 'old', '{}', now())"
    )
    next_one = schema.Migration(2, "0002_more.sql", "CREATE TABLE qo.more (a text)")
    known = [*schema.migrations(), next_one]
    monkeypatch.setattr(schema, "migrations", lambda: known)
    engine = await PostgresEngine.open(address)
    try:
        await engine.push([message()])
        [held] = await claim(engine)
        assert await answers(engine, done(held)) == ["settled"]
        assert server.psql(f"SELECT count(*) FROM {address.schema}.more") == "0"
        assert server.psql(f"SELECT rules ->> 'max_lost' FROM {address.schema}.queues WHERE name = 'old'") == "5"
    finally:
        await engine.close()


async def test_a_schema_one_version_newer_is_worked_on_and_a_newer_one_refused(server, url):
    address = read_address(url)
    await migrate(address, dry_run=False)
    newest = schema.migrations()[-1].number
    server.psql(f"INSERT INTO {address.schema}.migrations (number) VALUES ({newest + 1})")
    async with opened(url) as (client, _):
        await client.queue("q").push(1)
    server.psql(f"INSERT INTO {address.schema}.migrations (number) VALUES ({newest + 2})")
    with pytest.raises(Incompatible, match="made by a newer qo"):
        await PostgresEngine.open(address)


async def test_a_schema_of_another_program_is_refused(server, url):
    name = read_address(url).schema
    server.psql(f"CREATE SCHEMA {name}; CREATE TABLE {name}.theirs (a int)")
    with pytest.raises(Incompatible, match="tables of another program"):
        await PostgresEngine.open(read_address(url))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("schema=No-Such", "schema: must be"),
        ("wake=never", "wake must be one of"),
        ("pooler=some", "pooler must be one of"),
        ("pool=0", "pool must be from 1"),
        ("pool=x", "pool must be a whole number"),
        ("shema=qo", "did you mean 'schema'"),
    ],
)
def test_mistakes_in_a_url_get_a_sentence(options, said):
    with pytest.raises(Invalid, match=said):
        read_address(f"postgresql://localhost/db?{options}")


def test_what_is_postgresqls_passes_as_it_is():
    address = read_address("postgres://me:secret@/db?host=/tmp/socket&sslmode=disable&schema=other&pool=3")
    assert address == Address(
        dsn="postgresql://me:secret@/db?host=%2Ftmp%2Fsocket&sslmode=disable", schema="other", pool=3
    )


async def test_the_view_of_jobs_has_results_as_text(server):
    schema = new_schema()
    async with qo.connect(f"{server.url}&schema={schema}") as client:
        await client.queue("q").push(1)
        [delivery] = await client.queue("q").claim()
        await delivery.complete({"sum": 3})
    assert server.psql(f"SELECT payload || ' ' || result || ' ' || state FROM {schema}.jobs") == '1 {"sum":3} succeeded'
