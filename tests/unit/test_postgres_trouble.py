"""What may happen to a database, and to its connections, while qo is at work."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import asyncpg
import msgspec
import pytest

from qo.broker.broker import Broker
from qo.client.client import Client
from qo.core.errors import StoreFull
from qo.core.lease import Unit
from qo.core.message import Dedupe, NewMessage
from qo.stores.postgres import schema
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from tests.conformance.saying import ORDERS, claim, done, message, messages, new_id, payloads, settle, want
from tests.postgres import Server, new_schema


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
    """A TCP port that leads to a server's socket, until it is cut."""

    def __init__(self, server: Server) -> None:
        self._target = str(server.folder / ".s.PGSQL.5432")
        self._writers: set[asyncio.StreamWriter] = set()
        self._whole: asyncio.Server | None = None
        self.port = 0

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
        self._writers |= {writer, back}
        await asyncio.gather(_copy(reader, back), _copy(there, writer), return_exceptions=True)
        self._writers -= {writer, back}


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
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
        client = Client(Broker(store))
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


# Answers that are too large


async def test_a_claim_of_more_than_an_answer_can_hold_takes_less(url):
    """The server refuses to build an answer of more than a gigabyte; here it does so from three messages on."""
    async with opened(url) as store:
        await store.push(messages(8))
        first = await claim(store, messages=1)
        body = await store.value("look", schema.in_schema(TAKES, store.address.schema))
        assert "BEGIN" in body
        limited = body.replace(
            "BEGIN",
            "BEGIN IF p_messages > 2 THEN RAISE program_limit_exceeded USING MESSAGE = 'too large'; END IF;",
            1,
        )
        await store.pool.call(lambda connection, _: connection.execute(limited))
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
        await Client(Broker(store)).queue(ORDERS).claim(wait=5)
        assert await connections(server, "LISTEN%") == 1


async def test_calls_take_turns_on_few_connections(server, url):
    async with opened(url, pool=2, wake="poll") as store:
        before = await connections(server)
        await asyncio.gather(*(store.push(messages(1)) for _ in range(20)))
        assert await connections(server) <= before + 1
        assert len(await claim(store)) == 20


async def test_a_call_that_was_cancelled_leaves_no_connection_in_the_middle_of_something(server, url):
    async with opened(url, pool=1, wake="poll") as store:
        sleeping = asyncio.create_task(store.value("look", "SELECT pg_sleep(60)"))
        await asyncio.sleep(0.2)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
        await asyncio.wait_for(store.push(messages(1)), 5)
        assert len(await claim(store)) == 1


async def test_a_caller_who_is_cancelled_at_its_turn_passes_it_on(url, monkeypatch):
    async with opened(url, pool=1, wake="poll") as store:
        gate = asyncio.Event()
        pool = store.pool
        holding = asyncio.create_task(pool.call(lambda _, __: gate.wait()))
        await asyncio.sleep(0.05)
        second, third = (asyncio.create_task(store.value("look", "SELECT 1")) for _ in range(2))
        await asyncio.sleep(0.05)
        honest = pool._let_next_in

        def cancelled_at_its_turn() -> None:
            monkeypatch.undo()
            honest()
            second.cancel()

        monkeypatch.setattr(pool, "_let_next_in", cancelled_at_its_turn)
        gate.set()
        assert await asyncio.wait_for(third, 5) == 1
        await holding
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_closing_while_it_begins_to_listen_leaves_no_connection(server, url):
    before = await connections(server)
    store = await PostgresEngine.open(read_address(url))
    attending = asyncio.create_task(store.attend())
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
        forget = schema.in_schema("DELETE FROM qo.tidying", store.address.schema)  # the push has said so, too
        await store.pool.call(lambda connection, _: connection.execute(forget))
        await asyncio.gather(*(settle(store, done(each)) for each in halves))
        scheduled = await store.value("look", schema.in_schema("SELECT count(*) FROM qo.tidying", store.address.schema))
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
