"""PostgreSQL as an operator sets it up: one role owns the schema, others have what their work needs and no more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import asyncpg
import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.errors import Forbidden
from qo.core.lease import Delivered, Unit
from qo.core.message import Dedupe
from qo.stores.opening import migrate
from qo.stores.postgres import schema
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.schema import in_schema
from tests.conformance.saying import ORDERS, claim, done, extension, failed, message, messages, payloads, settle, want
from tests.conformance.test_workers import heartbeat
from tests.postgres import Server, new_schema

ROLES = ("producer", "worker", "server", "reader")
SECRET_TABLES = ("sealing_keys", "records", "nonces")


class Installation:
    """A schema, and the roles that work on it."""

    def __init__(self, server: Server) -> None:
        self.schema = new_schema()
        self._server = server
        server.psql(f"CREATE ROLE {self.schema}_owner LOGIN; GRANT CREATE ON DATABASE postgres TO {self.schema}_owner")
        for role in ROLES:
            server.psql(f"CREATE ROLE {self.schema}_{role} LOGIN")

    def url(self, role: str) -> str:
        return f"{self._server.url.replace('postgres@', f'{self.schema}_{role}@')}&schema={self.schema}"

    @asynccontextmanager
    async def opened(self, role: str) -> AsyncIterator[PostgresEngine]:
        engine = await PostgresEngine.open(replace(read_address(self.url(role)), pool=3))
        try:
            yield engine
        finally:
            await engine.close()

    async def say(self, role: str, sql: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.url(role).partition("&schema")[0])
        try:
            return await connection.fetch(in_schema(sql, self.schema))
        finally:
            await connection.close()


@pytest.fixture
async def installation(server) -> Installation:
    found = Installation(server)
    await migrate(found.url("owner"), dry_run=False)
    return found


async def test_a_producer_pushes_and_sees_nothing(installation):
    async with installation.opened("owner") as owner:
        await owner.configure("sealed", {"encrypt": True})
        await owner.push([message("sealed")])  # makes the key
    async with installation.opened("producer") as store:
        await store.push(messages(3))
        await store.push([message(key="k"), message(delay=timedelta(hours=1)), message(dedupe=Dedupe("d"))])
        await store.push([message(headers={"a": "b"}, ttl=timedelta(hours=1))], nonce="once")
        await store.push([message("sealed")])
        await store.transact([Unit(pushes=(message(), message(key="k")))])
        await store.tidy()
        for refused in (
            claim(store),
            store.configure(ORDERS, {"max_payload": 1}),
            store.purge(ORDERS),
            store.list_jobs(ORDERS, None, None, 10),
            store.dead(ORDERS, None, None, 10),
            store.records("token", "", 10),
        ):
            with pytest.raises(Forbidden, match="does not permit"):
                await refused
    await installation.say("producer", "SELECT qo.push('orders', '{\"from\": \"SQL\"}', key => 'k')")
    for table in ("messages", "intake", "dead_letters", "jobs", "records"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await installation.say("producer", f"SELECT * FROM qo.{table}")
    async with installation.opened("owner") as owner:
        assert (await owner.depth(ORDERS, "default")).ready == 8
        assert payloads(await claim(owner, "sealed")) == [b"1", b"1"]


async def test_a_producer_enqueues_in_its_own_transaction(installation):
    connection = await asyncpg.connect(installation.url("producer").partition("&schema")[0])
    async with connection.transaction():
        await qo.enqueue(connection, "mail", {"to": "Ada"}, schema=installation.schema)
    await connection.close()
    async with installation.opened("worker") as store:
        assert payloads(await claim(store, "mail")) == [b'{"to":"Ada"}']


async def test_a_worker_claims_settles_and_is_known(installation):
    async with installation.opened("producer") as producer:
        await producer.push([*messages(4), message(key="k"), message("by-filter.a")])
    async with installation.opened("worker") as store:
        broker = LocalBroker(store)
        await store.heartbeat([heartbeat()])
        first, *others = await claim(store, messages=4)
        await store.extend([extension(first, 60, started=True)])
        await settle(store, failed(first, after=0), *map(done, others))
        await store.settle([], [want(messages=10)])
        await claim(store, "by-filter.a", group="another")
        await store.push([message()])
        assert len(await Client(broker).queue(ORDERS).claim(wait=5)) == 1
        await store.call.value("hint", store.call.sql.tell, [ORDERS])  # what is said after a commit, to other processes
        await store.deregister([heartbeat().id])
        await store.tidy()
        for refused in (
            store.configure(ORDERS, {"max_payload": 1}),
            store.purge(ORDERS),
            store.delete_queue(ORDERS),
            store.list_jobs(ORDERS, None, None, 10),
            store.records("token", "", 10),
        ):
            with pytest.raises(Forbidden, match="does not permit"):
                await refused
        await broker.close()
    for statement in ("DELETE FROM qo.messages", "UPDATE qo.queues SET paused = true", "SELECT * FROM qo.records"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await installation.say("worker", statement)


async def test_a_worker_takes_over_what_another_lost_and_what_is_to_be_tried_again(installation):
    async with installation.opened("producer") as producer:
        await producer.push([*messages(2), message(key="k"), message(delay=timedelta(milliseconds=50))])
    async with installation.opened("worker") as store:
        taken = await claim(store, lease=timedelta(milliseconds=200))
        keyed = [each for each in taken if each.key is not None]
        await settle(store, *(failed(each, after=0.1) for each in keyed))
        again: list[Delivered] = []
        async with asyncio.timeout(30):
            while len(again) < 4:
                again += await claim(store)
                await asyncio.sleep(0.01)
        assert sum(each.attempt == 2 for each in again) == 1


@pytest.mark.parametrize(
    "call",
    [
        "qo.tidy_lanes(100, 1000, now() + interval '10 years')",
        "qo.tidy_rest(1000, now() + interval '10 years')",
        "qo.lapse_over('018bcfe5-6800-7000-8000-020000000000', NULL, now() + interval '10 years')",
        "qo.lapse('{1}', 100, NULL, now() + interval '10 years')",
        "qo.enter_due('orders', 100, now() + interval '10 years')",
        "qo.extend('{}', '{}', '{}', '{}', '{}', now() + interval '10 years')",
    ],
)
async def test_what_time_it_is_is_not_for_a_role_to_say(installation, call):
    async with installation.opened("owner") as owner:
        await owner.push(messages(2))
    for role in ("producer", "worker"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await installation.say(role, f"SELECT {call}")
    async with installation.opened("owner") as owner:
        assert (await owner.depth(ORDERS, "default")).ready == 2


async def test_a_server_does_everything_but_change_the_schema(installation):
    async with installation.opened("server") as store:
        await store.configure(ORDERS, {"encrypt": True, "retry": {"attempts": 1}})
        await store.push([message(payload=b"sealed"), *messages(2)])
        taken = await claim(store)
        await settle(store, *map(failed, taken))
        assert len(await store.dead(ORDERS, None, None, 10)) == 3
        await store.retry_dead(ORDERS, "default", None)
        assert len(await store.list_jobs(ORDERS, None, None, 10)) == 6
        await store.pause(ORDERS, True)
        await store.purge(ORDERS)
        await store.delete_queue(ORDERS)
        assert (await store.health()).problems == ()
    for statement in ("DROP TABLE qo.messages", "CREATE TABLE qo.more (a text)", "DELETE FROM qo.migrations"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await installation.say("server", statement)


async def test_a_reader_looks_and_neither_acts_nor_sees_secrets(installation):
    async with installation.opened("owner") as owner:
        await owner.configure("sealed", {"encrypt": True})
        await owner.push([*messages(2), message("sealed", b"secret")])
    async with installation.opened("reader") as store:
        assert [each.name for each in await store.queues("", 10)] == [ORDERS, "sealed"]
        assert (await store.depth(ORDERS, "default")).ready == 2
        assert len(await store.list_jobs(ORDERS, None, None, 10)) == 2
        [hidden] = await store.list_jobs("sealed", None, None, 10)
        assert b"secret" not in hidden.payload
        assert (await store.health()).problems == ()
        assert await store.workers() == []
        for refused in (store.push(messages(1)), claim(store), store.purge(ORDERS), store.records("token", "", 10)):
            with pytest.raises(Forbidden, match="does not permit"):
                await refused
    rows = await installation.say("reader", "SELECT state, count(*) FROM qo.jobs GROUP BY state")
    assert [tuple(row) for row in rows] == [("queued", 3)]
    for table in SECRET_TABLES:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await installation.say("reader", f"SELECT * FROM qo.{table}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await installation.say("reader", "DELETE FROM qo.messages")


async def test_a_role_that_comes_later_is_given_its_rights_by_migrate(server):
    schema = new_schema()
    async with _opened(f"{server.url}&schema={schema}") as owner:
        await owner.push(messages(1))
    server.psql(f"CREATE ROLE {schema}_worker LOGIN")
    url = f"{server.url.replace('postgres@', f'{schema}_worker@')}&schema={schema}"
    with pytest.raises(Forbidden):
        await PostgresEngine.open(read_address(url))
    assert await migrate(f"{server.url}&schema={schema}", dry_run=True) == []
    assert await migrate(f"{server.url}&schema={schema}", dry_run=False) == []
    async with _opened(url) as store:
        assert len(await claim(store)) == 1


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[PostgresEngine]:
    engine = await PostgresEngine.open(read_address(url))
    try:
        yield engine
    finally:
        await engine.close()


async def test_nobody_else_may_call_a_function(server, installation):
    server.psql(f"CREATE ROLE {installation.schema}_stranger LOGIN")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await installation.say("stranger", "SELECT qo.push('orders', '1')")
    server.psql(f"GRANT USAGE ON SCHEMA {installation.schema} TO {installation.schema}_stranger")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="function push"):
        await installation.say("stranger", "SELECT qo.push('orders', '1')")


async def test_no_function_looks_for_names_where_others_may_put_them(installation):
    rows = await installation.say(
        "owner",
        """SELECT p.proname FROM pg_proc p
           WHERE p.pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'qo.queues'::regclass)
           AND p.prosqlbody IS NULL AND NOT coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)""",
    )
    assert [row[0] for row in rows] == []


async def test_an_operator_of_another_schema_is_not_used(server, installation):
    """A caller whose search path puts a schema before the system's own has no effect inside."""
    name = f"{installation.schema}_evil"
    server.psql(
        f"CREATE SCHEMA {name}; CREATE FUNCTION {name}.octet_length(bytea) RETURNS integer LANGUAGE sql AS 'SELECT 0';"
        f"GRANT USAGE ON SCHEMA {name} TO {installation.schema}_producer"
    )
    async with installation.opened("owner") as owner:
        await owner.configure(ORDERS, {"max_payload": 5})
    connection = await asyncpg.connect(installation.url("producer").partition("&schema")[0])
    await connection.execute(f"SET search_path = {name}, pg_catalog")
    with pytest.raises(asyncpg.InvalidParameterValueError, match="allows 5"):
        await connection.execute(in_schema("SELECT qo.push('orders', '\"too long for it\"')", installation.schema))
    await connection.close()


def test_rights_are_given_to_functions_that_there_are():
    """A name that nothing has any more would take a right away, and nobody would be told."""
    sql = schema.functions()
    lists = re.findall(r"v_(?:pushing|working|reading|telling) text\[\] := '\{([^}]*)\}'", sql)
    named = {name for names in lists for name in names.split(",")}
    made = set(
        re.findall(
            r"CREATE OR REPLACE FUNCTION qo\.(\w+)\(",
            sql + schema.migrations()[0].sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"),
        )
    )
    assert (len(lists), named - made) == (4, set())
