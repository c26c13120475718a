"""What may happen to a database, and to its connections, while qo is at work."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from qo.broker import batcher
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.errors import StoreFull, Unavailable
from qo.core.lane import Start
from qo.core.lease import Done, GroupName, Unit
from qo.core.message import Dedupe, NewMessage
from qo.stores.postgres import schema
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.failures import Signal, signal_of
from tests.conformance.saying import ORDERS, claim, done, message, messages, new_id, payloads, settle, want
from tests.postgres import QUICK, Server, new_schema


@pytest.fixture
def url(server) -> str:
    return f"{server.url}&schema={new_schema()}"


@asynccontextmanager
async def opened(url: str, **changes) -> AsyncIterator[PostgresEngine]:
    engine = await PostgresEngine.open(replace(read_address(url), **changes))
    try:
        yield engine
    finally:
        await engine.close()


# A full disk


async def test_a_full_disk_is_said_and_nothing_is_half_done(tmp_path):
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler")
    flag, shim = Path(f"/tmp/qo-full-{tmp_path.parent.name}-{tmp_path.name}"), tmp_path / "full_disk.so"
    source = Path(__file__).with_name("full_disk.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
    shared = Path(shutil.copy(shim, f"{flag}.so"))
    shared.chmod(0o755)
    server = Server(environment={"LD_PRELOAD": str(shared), "FULL_DISK_FLAG": str(flag)}).start()
    try:
        async with opened(server.url) as store:
            await store.push(messages(3))
            flag.touch()
            large = [message(payload=b"x" * 100_000) for _ in range(20)]
            with pytest.raises(StoreFull, match="no room"):
                await store.push(large)
            flag.unlink()
            assert [each.id for each in await store.push(large)] == [each.id for each in large]
            assert len(await claim(store, messages=100)) == 23
    finally:
        server.remove()
        flag.unlink(missing_ok=True)
        shared.unlink()


# A network that is cut


class Cable:
    """A TCP port that leads to a server's socket, until it is cut; or falls silent, and stays open."""

    def __init__(self, server: Server) -> None:
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._writers: set[asyncio.StreamWriter] = set()
        self._whole: asyncio.Server | None = None
        self._strands: list[Strand] = []
        self.port = 0

    def url(self, schema: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?schema={schema}"

    def silence(self, port: int | None = None) -> None:
        """Nothing comes through any more on the connections that there are, or on that which comes from a port."""
        for strand in self._strands:
            if port in (None, strand.port):
                strand.there.clear()
                strand.back.clear()

    def mute_newest(self) -> None:
        """What the server says on its newest connection is not heard any more; it hears, and is alive."""
        self._strands[-1].back.clear()

    def mend(self) -> None:
        for strand in self._strands:
            strand.there.set()
            strand.back.set()

    async def plug(self) -> None:
        self._whole = await asyncio.start_server(self._pass, "127.0.0.1", self.port or None)
        self.port = self._whole.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._whole is not None
        self._whole.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_unix_connection(self._target)
        strand = Strand(writer.get_extra_info("peername")[1])
        self._strands.append(strand)
        self._writers |= {writer, back}
        await asyncio.gather(
            _copy(reader, back, strand.there), _copy(there, writer, strand.back), return_exceptions=True
        )
        self._writers -= {writer, back}
        self._strands.remove(strand)


class Strand:
    """One connection: whether what is said passes, there and back."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.there, self.back = asyncio.Event(), asyncio.Event()
        self.there.set()
        self.back.set()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    try:
        while data := await source.read(65536):
            await passes.wait()
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.close()


async def test_a_cut_network_delays_and_loses_nothing(server):
    cable = Cable(server)
    await cable.plug()
    address = f"postgresql://postgres@127.0.0.1:{cable.port}/postgres?schema={new_schema()}"
    async with opened(address) as store:
        client = Client(LocalBroker(store))
        queue = client.queue("q")
        found: list[int] = []

        async def consume() -> None:
            while len(set(found)) < 60:
                for delivery in await queue.claim(10, wait=30):
                    found.append(delivery.payload)
                    await delivery.complete()

        consuming = asyncio.create_task(consume())
        for number in range(60):
            if number in (20, 40):
                pushing = asyncio.create_task(queue.push(number))
                await asyncio.sleep(0)
                await cable.cut()
                await asyncio.sleep(0.3)
                await cable.plug()
                await asyncio.wait_for(pushing, 20)
            else:
                await queue.push(number)
        await asyncio.wait_for(consuming, 60)
        assert sorted(set(found)) == list(range(60))
        assert (await queue.depth()).ready == 0
        await client.close()
    await cable.cut()


@asynccontextmanager
async def plugged(server: Server) -> AsyncIterator[Cable]:
    cable = Cable(server)
    await cable.plug()
    try:
        yield cable
    finally:
        cable.mend()
        await cable.cut()


# Deadlines hold for calls under way


async def test_a_silent_database_is_unavailable_when_the_deadline_has_passed(server):
    schema = new_schema()
    async with plugged(server) as cable, opened(cable.url(schema)) as store:
        await store.push(messages(1))
        store.call.pool.deadline_seconds = 0.5
        one = message(payload=b"once")
        cable.silence()
        with pytest.raises(Unavailable, match="it may have been done: repeat it"):
            await asyncio.wait_for(store.push([one]), 20)
        cable.mend()
        store.call.pool.deadline_seconds = 30
        await asyncio.wait_for(store.push([one]), 20)
        assert payloads(await claim(store)) == [b"0", b"once"]


async def test_a_connection_that_falls_silent_holds_no_other_push(server, monkeypatch):
    """Whose answer does not come is alone: what gathers meanwhile goes out on another connection."""
    monkeypatch.setattr(batcher, "STALL_SECONDS", 0.2)
    schema = new_schema()
    async with plugged(server) as cable, opened(cable.url(schema)) as store:
        broker = LocalBroker(store)
        await broker.push(messages(1))
        next_in_use: Any = store.call.pool._free[-1]
        cable.silence(next_in_use._transport.get_extra_info("sockname")[1])
        stalled = asyncio.create_task(broker.push([message(payload=b"stalled")]))
        await asyncio.sleep(0.05)
        others = [broker.push([message(payload=b"other")]) for _ in range(20)]
        await asyncio.wait_for(asyncio.gather(*others), 20)
        assert not stalled.done()
        cable.mend()
        await asyncio.wait_for(stalled, 20)
        assert sorted(payloads(await claim(store))) == [b"0", *[b"other"] * 20, b"stalled"]
        await broker.close()


async def test_a_table_that_is_locked_does_not_hang_a_call_for_ever(server, url):
    async with opened(url) as store:
        await store.push(messages(1))
        connection = await asyncpg.connect(server.url)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            schema.in_schema("LOCK TABLE qo.messages IN ACCESS EXCLUSIVE MODE", store.call.address.schema)
        )
        store.call.pool.deadline_seconds = 0.5
        for call in (store.push(messages(1)), claim(store), store.list_jobs(ORDERS, None, None, 10)):
            with pytest.raises(Unavailable):
                await asyncio.wait_for(call, 20)
        await transaction.rollback()
        await connection.close()
        store.call.pool.deadline_seconds = 30
        await asyncio.wait_for(store.push(messages(1)), 20)


async def test_a_verb_gives_up_on_a_lock_by_itself(url):
    """The server would wait on for a client that has gone."""
    async with opened(url) as store:
        found = await store.call.value(
            "look",
            schema.in_schema(
                "SELECT proconfig FROM pg_proc WHERE oid = 'qo.settle'::regproc", store.call.address.schema
            ),
        )
        assert "lock_timeout=20s" in found


# A failover: for a while the database cannot be written


async def test_a_database_that_is_read_only_for_a_while_goes_unnoticed(server, url):
    async with opened(url) as store:
        client = Client(LocalBroker(store))
        queue = client.queue(ORDERS)
        seen: list[int] = []

        async def handle(delivery) -> None:
            seen.append(delivery.payload)

        consuming = asyncio.create_task(queue.consume(handle))
        await queue.push(1)
        read_only(server, "on")
        try:
            pushing = asyncio.create_task(queue.push(2))
            await asyncio.sleep(1)
            assert not pushing.done()
        finally:
            read_only(server, "off")
        await asyncio.wait_for(pushing, 20)
        await queue.push(3)
        async with asyncio.timeout(20):
            while len(seen) < 3:
                await asyncio.sleep(0.01)
        assert not consuming.done()
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        await client.close()


async def test_a_database_that_stays_read_only_is_unavailable_and_consumers_outlive_it(server, url):
    async with opened(url) as store:
        client = Client(LocalBroker(store))
        queue = client.queue(ORDERS)
        seen: list[int] = []

        async def handle(delivery) -> None:
            seen.append(delivery.payload)

        await queue.push(1)
        store.call.pool.deadline_seconds = 0.3
        read_only(server, "on")
        try:
            with pytest.raises(Unavailable, match="cannot be written now"):
                await queue.push(2)
            consuming = asyncio.create_task(queue.consume(handle))
            await asyncio.sleep(1)
            assert not consuming.done(), "it asks again"
        finally:
            read_only(server, "off")
        async with asyncio.timeout(20):
            while not seen:
                await asyncio.sleep(0.01)
        consuming.cancel()
        await asyncio.gather(consuming, return_exceptions=True)
        await client.close()


def read_only(server: Server, value: str) -> None:
    server.psql(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    server.psql("SELECT pg_reload_conf()")
    while server.psql("SHOW default_transaction_read_only") != value:
        pass
    server.psql("SELECT pg_sleep(0.3)")  # sessions that are there already hear of it a moment later


# A listening connection that is alive, and mute


@pytest.mark.parametrize("check", [0.3, 0.0])
async def test_a_mute_listener_is_found_out_while_someone_waits(server, check):
    name = new_schema()
    async with plugged(server) as cable, opened(cable.url(name), check=check) as store:
        broker = LocalBroker(store)
        client = Client(broker)
        await client.queue(ORDERS).push("first")
        await client.queue(ORDERS).claim(wait=1)
        waiting = asyncio.create_task(client.queue(ORDERS).claim(wait=60))
        await asyncio.sleep(0.1)
        cable.mute_newest()
        server.psql(f"SELECT {name}.push('{ORDERS}', '2')")
        if check:
            [delivery] = await asyncio.wait_for(waiting, 30)
            assert delivery.payload == 2
            assert store.must_poll is False, "it listens anew"
            assert broker._vigil.verifications > 0
        else:
            await asyncio.sleep(1.5)
            assert not waiting.done()
            assert broker._vigil.verifications == 0
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await client.close()


# Isolation


@pytest.fixture(scope="module")
def repeating():
    """A server whose transactions see one snapshot, unless they say otherwise."""
    server = Server(settings={**QUICK, "default_transaction_isolation": "repeatable read"}).start()
    yield server
    server.remove()


async def test_an_empty_database_is_opened_by_several_at_once(repeating):
    name = new_schema()
    stores = await asyncio.gather(
        *(PostgresEngine.open(read_address(f"{repeating.url}&schema={name}")) for _ in range(6))
    )
    await stores[0].push(messages(2))
    assert len(await claim(stores[5])) == 2
    for store in stores:
        await store.close()


async def test_doctor_says_what_the_isolation_level_is(repeating, url):
    async with opened(f"{repeating.url}&schema={new_schema()}") as store:
        said = dict((await store.health()).details)["isolation"]
        assert "read committed" in said
        assert "the default is repeatable read" in said
    async with opened(url) as store:
        assert dict((await store.health()).details)["isolation"] == "read committed"


async def test_messages_are_leased_once_though_the_default_is_another(repeating):
    async with opened(f"{repeating.url}&schema={new_schema()}", pool=8) as store:
        await store.push([*messages(200), *(message(key=f"k{number}") for number in range(50))])
        claims = await asyncio.gather(*(claim(store, messages=10) for _ in range(40)))
        taken = [(each.lane, each.offset) for deliveries in claims for each in deliveries]
        assert len(taken) == len(set(taken)) == 250


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_verb_refuses_to_run_in_another_isolation_level(server, url, level):
    async with opened(url) as store:
        await store.push(messages(1))
        connection = await asyncpg.connect(server.url)
        await connection.execute(f"BEGIN ISOLATION LEVEL {level}")
        with pytest.raises(asyncpg.PostgresError, match=f"isolation level is {level.lower()}") as refused:
            await connection.fetch(
                schema.in_schema("SELECT qo.extend('{}', '{}', '{}', '{}', '{}', NULL)", store.call.address.schema)
            )
        assert signal_of(refused.value) == (Signal.ISOLATION, "")
        await connection.close()


async def test_a_default_that_changes_while_qo_runs_is_noticed(server, url):
    async with opened(url) as store:
        await store.push(messages(4))
        assert len(await claim(store, messages=2)) == 2
        server.psql("ALTER SYSTEM SET default_transaction_isolation = 'serializable'")
        server.psql("SELECT pg_reload_conf()")
        try:
            await asyncio.sleep(0.3)
            assert len(await claim(store, messages=2)) == 2
            await store.push(messages(1))
        finally:
            server.psql("ALTER SYSTEM RESET default_transaction_isolation")
            server.psql("SELECT pg_reload_conf()")


async def test_calls_that_meet_another_default_together_all_go_on(server, url):
    async with opened(url, pool=4) as store:
        await asyncio.gather(*(store.push(messages(1)) for _ in range(4)))
        for connection in store.call.pool._free:
            await connection.execute("SET default_transaction_isolation = 'repeatable read'")
        assert len(store.call.pool._free) > 1
        answers = await asyncio.gather(*(store.push(messages(1)) for _ in range(4)))
        assert len(answers) == 4


async def test_a_call_that_waits_for_a_connection_gets_its_turn(url):
    async with opened(url, pool=1, wake="poll") as store:
        going_on = True

        async def busy() -> None:
            while going_on:
                await store.call.pool.call(lambda _, __: asyncio.sleep(0))

        loops = [asyncio.create_task(busy()) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(store.call.value("look", "SELECT 1"), 10) == 1
        going_on = False
        await asyncio.gather(*loops)
        assert (store.call.pool._called, len(store.call.pool._free)) == (0, 1)


# Answers that are too large


async def test_a_claim_of_more_than_an_answer_can_hold_takes_less(url):
    """The server refuses to build an answer of more than a gigabyte; here it does so from three messages on."""
    async with opened(url) as store:
        await store.push(messages(8))
        first = await claim(store, messages=1)
        body = await store.call.value("look", schema.in_schema(TAKES, store.call.address.schema))
        assert "BEGIN" in body
        limited = body.replace(
            "BEGIN",
            "BEGIN IF p_messages > 2 THEN RAISE program_limit_exceeded USING MESSAGE = 'too large'; END IF;",
            1,
        )
        await store.call.pool.call(lambda connection, _: connection.execute(limited))
        assert len(await claim(store, messages=7)) == 1  # seven, three, one
        answers, [claimed] = await store.settle([done(first[0])], [want(messages=4)])
        assert [each.answer for each in answers] == ["settled"]
        assert len(claimed.deliveries) == 2


TAKES = "SELECT pg_get_functiondef('qo.take_plain'::regproc)"


# Connections


async def connections(server: Server, last_said: str = "%") -> int:
    connection = await asyncpg.connect(server.url)
    try:
        found: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'qo' AND query LIKE $1", last_said
        )
        return found
    finally:
        await connection.close()


async def test_a_process_that_only_pushes_does_not_listen(server, url):
    async with opened(url) as store:
        await store.push(messages(2))
        assert await connections(server, "LISTEN%") == 0
        await Client(LocalBroker(store)).queue(ORDERS).claim(wait=5)
        assert await connections(server, "LISTEN%") == 1


async def test_calls_take_turns_on_few_connections(server, url):
    async with opened(url, pool=2, wake="poll") as store:
        before = await connections(server)
        await asyncio.gather(*(store.push(messages(1)) for _ in range(20)))
        assert await connections(server) <= before + 1
        assert len(await claim(store)) == 20


async def test_a_call_that_was_cancelled_leaves_no_connection_in_the_middle_of_something(server, url):
    async with opened(url, pool=1, wake="poll") as store:
        sleeping = asyncio.create_task(store.call.value("look", "SELECT pg_sleep(60)"))
        await asyncio.sleep(0.2)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        await asyncio.wait_for(store.push(messages(1)), 5)
        assert len(await claim(store)) == 1


async def test_a_caller_who_is_cancelled_at_its_turn_passes_it_on(url, monkeypatch):
    async with opened(url, pool=1, wake="poll") as store:
        authenticator = asyncio.Event()
        pool = store.call.pool
        holding = asyncio.create_task(pool.call(lambda _, __: authenticator.wait()))
        await asyncio.sleep(0.05)
        second, third = (asyncio.create_task(store.call.value("look", "SELECT 1")) for _ in range(2))
        await asyncio.sleep(0.05)
        honest = pool._let_next_in

        def cancelled_at_its_turn() -> None:
            monkeypatch.undo()
            honest()
            second.cancel()

        monkeypatch.setattr(pool, "_let_next_in", cancelled_at_its_turn)
        authenticator.set()
        assert await asyncio.wait_for(third, 5) == 1
        await holding
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_closing_while_it_begins_to_listen_leaves_no_connection(server, url):
    before = await connections(server)
    store = await PostgresEngine.open(read_address(url))
    attending = asyncio.create_task(store.start_listening())
    await asyncio.sleep(0.001)
    await store.close()
    await asyncio.gather(attending, return_exceptions=True)
    await asyncio.sleep(0.2)
    assert await connections(server) == before


# Dedupe keys are locked before lanes, in their order


async def test_the_same_keys_in_any_order_never_wait_for_each_other(server, url):
    """Pushes and units of the same new keys, many times over: each is stored once, and the server saw no deadlock."""
    since = server.log.stat().st_size
    async with opened(url, pool=8) as store:
        stored = 0
        for round_ in range(20):
            keys = [f"{round_}-{number}" for number in range(5)]

            def batch(order: list[str]) -> list:
                return [message(dedupe=Dedupe(key), key=f"lane {key}") for key in order]

            pushes = [store.push(batch(order)) for order in (keys, keys[::-1], keys[2:] + keys[:2])]
            units = [store.transact([Unit(pushes=tuple(batch(order)))]) for order in (keys[::-1], keys)]
            await asyncio.gather(*pushes, *units)
            stored += 5
        assert (await store.depth(ORDERS, "default")).ready == stored
    assert b"deadlock" not in server.log.read_bytes()[since:]


async def test_what_a_settle_finishes_is_tidied_though_many_finish_at_once(url):
    async with opened(url, pool=8) as store:
        await store.push([message(key=f"k{number}") for number in range(20)])
        taken = await claim(store, messages=20, lane_messages=1)
        halves = taken[::2] + taken[1::2]
        forget = schema.in_schema("DELETE FROM qo.tidying", store.call.address.schema)  # the push has said so, too
        await store.call.pool.call(lambda connection, _: connection.execute(forget))
        await asyncio.gather(*(settle(store, done(each)) for each in halves))
        scheduled = await store.call.value(
            "look", schema.in_schema("SELECT count(*) FROM qo.tidying", store.call.address.schema)
        )
        assert scheduled == 20
        assert payloads(await claim(store)) == []


async def test_pushes_and_settles_of_the_same_lanes_in_any_order_never_wait_for_each_other(server, url):
    """Messages with headers are pushed one by one, and wake idle cursors that settles hold."""
    since = server.log.stat().st_size
    async with opened(url, pool=8) as store:
        for _ in range(40):
            there, back = (
                [message(kind=kind, headers={"a": "b"}) for kind in order]
                for order in (("a", "b", "c"), ("c", "b", "a"))
            )
            await store.push(there)
            taken = await claim(store, messages=3)
            assert len(taken) >= 3
            units = [Unit(settlements=(done(taken[0]),), pushes=tuple(back)), Unit(pushes=tuple(messages(1, kind="b")))]
            await asyncio.gather(
                store.push([replace_id(each) for each in back]),
                store.push([replace_id(each) for each in there]),
                settle(store, *map(done, taken[1:])),
                *(store.transact([unit]) for unit in units),
            )
            rest = await claim(store, messages=100)
            await settle(store, *map(done, rest[::-1]))
    assert b"deadlock" not in server.log.read_bytes()[since:]


def replace_id(one: NewMessage) -> NewMessage:
    return msgspec.structs.replace(one, id=new_id())


async def test_what_is_done_in_a_transaction_needs_one_connection(url):
    """A pool of one does it: nothing inside asks for another."""
    async with opened(url, pool=1, wake="poll") as store:
        await store.push(messages(2))
        for group in ("a", "b"):
            await store.create_group([ORDERS], group, Start())
        gone = tuple(GroupName(ORDERS, group) for group in ("b", "a", "b"))
        [answer] = await asyncio.wait_for(store.transact([Unit(removed_groups=gone)]), 20)
        assert isinstance(answer, Done)
        assert [each.name for each in await store.groups(ORDERS)] == ["default"]
        assert await asyncio.wait_for(store.purge(ORDERS, nonce="once"), 20) == 2
