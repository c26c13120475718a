"""The most that one request may ask of a store, counted: no commit is so much work that others wait for long.

Counted is what a commit does, not how long it takes: statements and rows on SQLite, index entries read and rows
written on PostgreSQL. On our machine 100 ms are about 12 thousand of the one, 25 thousand of the other.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import aiohttp
import asyncpg
import pytest

from qo.broker.batcher import parts_of
from qo.broker.broker import LocalBroker
from qo.broker.push import COMMIT_WORK, work_of
from qo.core.lease import CLAIM_LIMIT, KINDS_LIMIT, QUEUES_LIMIT, THEN_LIMIT
from qo.server.settings import LimitSettings
from qo.stores.postgres.address import read_address
from qo.stores.postgres.call import Call
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sqlite.engine import SqliteEngine
from qo.stores.sqlite.session import Session
from qo.stores.sqlite.transaction import Transaction
from qo.wire.jobs import CANCEL_LIMIT
from tests.conformance.remote import Running, serving
from tests.conformance.saying import message, messages
from tests.postgres import Server, new_schema
from tests.unit.test_server import ask

LIMITS = LimitSettings()
MOST = {"sqlite": 12_000, "postgres": 25_000}


class Counter:
    """The work of the commit that did most, since it was asked last."""

    def __init__(self) -> None:
        self._most = 0

    def note(self, work: int) -> None:
        self._most = max(self._most, work)

    def taken(self) -> int:
        most, self._most = self._most, 0
        return most


def counted_sqlite(monkeypatch: pytest.MonkeyPatch, counter: Counter) -> None:
    """Each statement, and each row of those that are run for many."""
    work = 0

    def counting(name: str) -> None:
        honest = getattr(Transaction, name)

        @functools.wraps(honest)
        def counted(self: Transaction, sql: str, *values: Any) -> Any:
            nonlocal work
            work += 1
            return honest(self, sql, *values)

        monkeypatch.setattr(Transaction, name, counted)

    for name in ("row", "rows", "each", "value", "run", "insert"):
        counting(name)
    honest_many, honest_commit = Transaction.many, Session._commit

    def many(self: Transaction, sql: str, rows: Any) -> None:
        nonlocal work
        listed = list(rows)
        work += len(listed)
        honest_many(self, sql, listed)

    def commit(self: Session, connection: Any, calls: Any, *, careful: bool) -> Any:
        nonlocal work
        work = 0
        try:
            return honest_commit(self, connection, calls, careful=careful)
        finally:
            if "IMMEDIATE" in self._begin_sql:
                counter.note(work)

    monkeypatch.setattr(Transaction, "many", many)
    monkeypatch.setattr(Session, "_commit", commit)


class CountedCall(Call):
    """Counts what each call to the server did, by the server's own statistics."""

    counter: Counter
    look: asyncpg.Connection[Any]

    async def run(self, name: str, work: Callable[..., Any], *, items: int = 1) -> Any:
        if self._bound is not None or not hasattr(self, "counter"):
            return await super().run(name, work, items=items)
        before = await self._count()
        try:
            return await super().run(name, work, items=items)
        finally:
            self.counter.note(await self._count() - before)

    async def _count(self) -> int:
        await self.pool.call(lambda connection, _: connection.execute("SELECT pg_stat_force_next_flush()"))
        found: int = await self.look.fetchval(
            """SELECT (SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes) + coalesce(
                   (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del + seq_tup_read) FROM pg_stat_user_tables), 0)"""
        )
        return int(found)


class Place(NamedTuple):
    """A server, what its store does, and the most that it should do in one commit."""

    server: Running
    counter: Counter
    most: int

    async def ask(self, path: str, body: Any) -> tuple[int, Any]:
        status, _, said = await ask(self.server, "POST", path, body)
        return status, said


@pytest.fixture(scope="module")
def database():
    server = Server(settings={"fsync": "off", "autovacuum": "off"}).start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request, monkeypatch, database) -> AsyncIterator[Place]:
    counter = Counter()
    engine: Any
    if request.param == "sqlite":
        counted_sqlite(monkeypatch, counter)
        engine = await SqliteEngine.open(":memory:")
    else:
        address = replace(read_address(database.url), schema=new_schema(), wake="poll", pool=1)
        monkeypatch.setattr("qo.stores.postgres.engine.Call", CountedCall)
        engine = await PostgresEngine.open(address)
        engine.call.look = await asyncpg.connect(database.url)
    broker = LocalBroker(engine)
    await broker._housekeeping.stop()
    async with serving(broker) as running, aiohttp.ClientSession(running.url) as session:
        running.session = session
        if request.param == "postgres":
            engine.call.counter = counter
        yield Place(running, counter, MOST[request.param])
    if request.param == "postgres":
        await engine.call.look.close()


async def fill(place: Place, batch: list[Mapping[str, Any]]) -> None:
    for start in range(0, len(batch), 5000):
        status, said = await place.ask("/v1/messages", {"messages": batch[start : start + 5000]})
        assert status == 201, said


async def claim_all(place: Place, count: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    while len(items) < count:
        _, said = await place.ask("/v1/queues/q/claim", {"messages": 1000, "lease_seconds": 3600})
        items += [{name: each[name] for name in ("token", "lane", "offset")} for each in said["messages"]]
    return items


Case = Callable[[Place], Awaitable[tuple[str, Any]]]


def pushing(path: str = "/v1/messages", **more: Any) -> Case:
    """As many messages as a request may have, each with something of its own."""

    async def prepare(_: Place) -> tuple[str, Any]:
        def own(number: int) -> dict[str, Any]:
            return {name: value(number) if callable(value) else value for name, value in more.items()}

        return path, {"messages": [{"queue": "q", "payload": 1, **own(number)} for number in range(LIMITS.batch)]}

    return prepare


async def unit(place: Place) -> tuple[str, Any]:
    return "/v1/units", {"push": [{"queue": "q", "payload": 1, "key": f"k{number}"} for number in range(LIMITS.keys)]}


async def claim_queues(place: Place) -> tuple[str, Any]:
    names = [f"q{number}" for number in range(QUEUES_LIMIT)]
    await fill(place, [{"queue": name, "payload": 1} for name in names])
    return "/v1/claim", {"queues": names, "messages": CLAIM_LIMIT}


async def claim_kinds(place: Place) -> tuple[str, Any]:
    kinds = [f"k{number}" for number in range(KINDS_LIMIT)]
    await fill(place, [{"queue": "q", "payload": 1, "kind": kind} for kind in kinds])
    return "/v1/claim", {"queues": ["q"], "kinds": kinds, "messages": CLAIM_LIMIT}


async def claim_keys(place: Place) -> tuple[str, Any]:
    await fill(place, [{"queue": "q", "payload": 1, "key": f"k{number}"} for number in range(2000)])
    return "/v1/claim", {"queues": ["q"], "messages": CLAIM_LIMIT}


async def claim_open(place: Place) -> tuple[str, Any]:
    await fill(place, [{"queue": "q", "payload": 1} for _ in range(CLAIM_LIMIT)])
    return "/v1/claim", {"queues": ["q"], "messages": CLAIM_LIMIT}


async def then(place: Place) -> tuple[str, Any]:
    names = [f"q{number}" for number in range(QUEUES_LIMIT)]
    await fill(place, [{"queue": name, "payload": 1, "key": "k"} for name in names])
    share = len(names) // THEN_LIMIT
    wants = [{"queues": names[n * share : (n + 1) * share], "messages": CLAIM_LIMIT} for n in range(THEN_LIMIT)]
    return "/v1/settle", {"items": [], "then": wants}


async def settle_open(place: Place) -> tuple[str, Any]:
    await fill(place, [{"queue": "q", "payload": 1} for _ in range(LIMITS.batch)])
    return "/v1/settle", {"items": [{**item, "result": 1} for item in await claim_all(place, LIMITS.batch)]}


async def extend(place: Place) -> tuple[str, Any]:
    """One token that holds many lanes, and others that hold nothing."""
    await fill(place, [{"queue": "q", "payload": 1, "key": f"k{number}"} for number in range(LIMITS.lanes)])
    [held, *_] = await claim_all(place, LIMITS.lanes)
    tokens = [held["token"], *(f"t{number}" for number in range(LIMITS.batch - 1))]
    return "/v1/extend", {"leases": [{"token": token, "lease_seconds": 9} for token in tokens]}


async def cancel(place: Place) -> tuple[str, Any]:
    batch = messages(CANCEL_LIMIT)
    await place.server.context.broker.push(batch)
    return "/v1/jobs/cancel", {"ids": [each.id.hex() for each in batch]}


async def queen_push(place: Place) -> tuple[str, Any]:
    items = [{"queue": "q", "payload": 1, "partition": f"p{number}"} for number in range(LIMITS.batch)]
    return "/api/v1/push", {"items": items}


CASES: dict[str, Case] = {
    "push": pushing(),
    "push with keys": pushing(key=lambda number: f"k{number}"),
    "push with dedupe keys": pushing(dedupe=lambda number: f"d{number}"),
    "push delayed": pushing(delay_seconds=60),
    "push with lives": pushing(ttl_seconds=60, headers={"a": "b"}),
    "unit": unit,
    "claim many queues": claim_queues,
    "claim many kinds": claim_kinds,
    "claim many keys": claim_keys,
    "claim one lane": claim_open,
    "claim with a settle": then,
    "settle": settle_open,
    "extend": extend,
    "cancel": cancel,
    "push of Queen's wire": queen_push,
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_most_that_a_request_may_ask_is_no_more_than_one_commit_should_do(place, case):
    path, body = await case(place)
    place.counter.taken()
    status, said = await place.ask(path, body)
    assert status in (200, 201), said
    assert 0 < place.counter.taken() <= place.most


def test_messages_are_parted_by_their_work():
    batch = [message() for _ in range(COMMIT_WORK + 1)]
    assert [len(part) for part in parts_of(batch, work_of, COMMIT_WORK)] == [COMMIT_WORK, 1]
    keyed = [message(key="k") for _ in range(1000)]
    parts = list(parts_of(keyed, work_of, COMMIT_WORK))
    assert max(map(len, parts)) == COMMIT_WORK // 6
    assert [each for part in parts for each in part] == keyed
    assert list(parts_of([], work_of, COMMIT_WORK)) == []
    assert [len(part) for part in parts_of([message(key="k")], work_of, 1)] == [1], "one may be more"
