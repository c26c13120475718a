"""What each hot verb reads, with many messages, lanes and groups stored: by index, and no more than its batch needs."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

from qo.core.lane import Start
from qo.core.lease import AckByName, Complete, Extension, Fail, Release
from qo.core.message import TRANSACTION, Dedupe, DedupeScope, Duplicate, NewMessage, Stored, message_ids
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from tests.conformance.saying import answers, claim, done, message, messages, nothing, say
from tests.postgres import Server

MESSAGES = int(os.environ.get("QO_PLAN_MESSAGES", "100000"))
LANES = MESSAGES // 10
GROUPS = 10
QUEUE = "orders"
BATCH = 100
LONG = timedelta(hours=1)
"""No lease runs out while this runs, however slow the machine is: giving back is read for, too."""
PER_MESSAGE = 100
"""Index entries that a verb may read for each message of its batch, in all tables; a push looks at every group."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(settings={"fsync": "off", "track_io_timing": "off", "autovacuum": "off"}).start()
    yield server
    server.remove()


@pytest.fixture(scope="module")
def full(server) -> None:
    """Fill it once: keyed lanes with a message each, and the rest in one open lane, seen by ten groups."""
    asyncio.run(fill(server))


async def fill(server: Server) -> None:
    engine = await PostgresEngine.open(replace(read_address(server.url), wake="poll", pool=1))
    await engine.configure(QUEUE, {})
    for number in range(GROUPS - 1):
        await engine.create_group([QUEUE], f"group-{number}", Start())
    ids = message_ids(1_600_000_000_000, 0, MESSAGES)
    for start in range(0, LANES, 1000):
        await engine.push([NewMessage(ids[n], QUEUE, b"1", key=f"k{n}") for n in range(start, start + 1000)])
    for start in range(LANES, MESSAGES, 10_000):
        await engine.push([NewMessage(id, QUEUE, b"1") for id in ids[start : start + 10_000]])
    await engine.close()


@pytest.fixture
async def store(server, full) -> AsyncIterator[PostgresEngine]:
    engine = await PostgresEngine.open(replace(read_address(server.url), wake="poll", pool=1))
    yield engine
    await engine.close()


class Reading:
    """Counts what a verb reads."""

    def __init__(self, store: PostgresEngine, server: Server) -> None:
        self.store = store
        self.server = server

    async def _counts(self) -> Counter[str]:
        await self.store.call.pool.call(lambda connection, _: connection.execute("SELECT pg_stat_force_next_flush()"))
        connection = await asyncpg.connect(self.server.url)
        try:
            rows = await connection.fetch("SELECT relname, seq_scan, seq_tup_read FROM pg_stat_user_tables")
            read = await connection.fetch("SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes")
        finally:
            await connection.close()
        counts = Counter({f"scanned {name}": scanned for name, scans, scanned in rows})
        counts.update({f"index {name}": entries for name, entries in read})
        return counts

    async def of(self, call):
        """The call's answer, rows read by scanning tables, and entries read from indexes."""
        before = await self._counts()
        answer = await call
        spent = await self._counts() - before
        scanned = {name: count for name, count in spent.items() if name.startswith("scanned") and name not in SMALL}
        return answer, scanned, sum(count for name, count in spent.items() if name.startswith("index"))


SMALL = {
    f"scanned {name}" for name in ("defaults", "queues", "groups", "group_filters", "watched", "migrations", "events")
}
"""Tables of a handful of rows, or that are looked at for being empty."""


@pytest.fixture
def reading(store, server) -> Reading:
    return Reading(store, server)


async def warm(store: PostgresEngine) -> None:
    """The first call on a connection reads the catalog, not our tables; plans are made."""
    await store.push(messages(2))
    taken = await claim(store, messages=2, lease=LONG)
    await answers(store, *map(done, taken))


async def test_pushes(store, reading):
    await warm(store)
    _, scanned, entries = await reading.of(store.push(messages(BATCH)))
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries
    new = [message(key=f"k{number * 7}") for number in range(BATCH)]
    _, scanned, entries = await reading.of(store.push(new))
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries


async def test_names_and_commits(store, reading):
    """However many names there are."""
    await warm(store)
    names = iter(range(10**9))

    def named(count: int) -> list[NewMessage]:
        return [
            message("named", key=f"k{number % 10}", headers={TRANSACTION: name}, dedupe=by_name(name))
            for number, name in enumerate(f"t{next(names)}" for _ in range(count))
        ]

    def by_name(name: str) -> Dedupe:
        return Dedupe(name, scope=DedupeScope.LANE, as_queue=True)

    for _ in range(10):
        await store.push(named(1000))
    new = named(BATCH)
    pushed, scanned, entries = await reading.of(store.push(new))
    assert all(isinstance(each, Stored) for each in pushed)
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries
    again = [message("named", key=each.key, dedupe=each.dedupe) for each in new]
    pushed, scanned, entries = await reading.of(store.push(again))
    assert all(isinstance(each, Duplicate) for each in pushed)
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries
    one_by_one = [message("named", key="k0", dedupe=Dedupe(f"d{number}")) for number in range(BATCH)]
    _, scanned, entries = await reading.of(store.push(one_by_one))
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries
    taken = await claim(store, "named", messages=BATCH, lanes=1, lease=LONG)
    acks = [
        AckByName(queue="named", key=each.key, name=each.headers[TRANSACTION], report=Complete(), token=each.token)
        for each in taken
    ]
    _, scanned, entries = await reading.of(store.ack_by_name(acks))
    assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries


@pytest.mark.parametrize("group", ["default", "group-3"])
async def test_claims_and_settles(store, reading, group):
    await warm(store)
    kinds = frozenset(["default"])
    for options in ({}, {"lane_messages": 1}, {"kinds": kinds}):
        taken, scanned, entries = await reading.of(claim(store, group=group, messages=BATCH, lease=LONG, **options))
        assert len(taken) == BATCH
        assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), (options, entries)
        extension = Extension(token=taken[0].token, lease=LONG)
        _, scanned, entries = await reading.of(store.extend([extension]))
        assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), entries
        reports = [Complete(), Complete(), Complete(), Fail("no"), Release()]
        items = [say(each, reports[number % 5]) for number, each in enumerate(taken)]
        _, scanned, entries = await reading.of(answers(store, *items))
        assert (scanned, entries <= BATCH * PER_MESSAGE) == ({}, True), (options, entries)


async def test_a_claim_that_finds_nothing(store, reading):
    await warm(store)
    await nothing(store, kinds=frozenset(["never"]))
    _, scanned, entries = await reading.of(nothing(store, kinds=frozenset(["never"])))
    # Among them entries of rows that the tests before have left and no vacuum has removed yet.
    assert (scanned, entries <= 3 * PER_MESSAGE) == ({}, True), entries


async def test_a_job_and_a_cancel(store, reading):
    await warm(store)
    new = message()
    await store.push([new])
    await store.jobs([new.id])
    _, scanned, entries = await reading.of(store.cancel([new.id], "default"))
    assert (scanned, entries <= PER_MESSAGE) == ({}, True), entries


async def test_housekeeping(store, reading):
    """A step looks at a bounded number of lanes."""
    await store.tidy()
    _, scanned, entries = await reading.of(store.tidy())
    assert (scanned, entries <= 100 * GROUPS * PER_MESSAGE) == ({}, True), entries
