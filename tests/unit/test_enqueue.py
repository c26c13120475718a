"""Enqueue in a user's own transaction: rolled back means never there, committed means it will run."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import django
import django.conf
import django.db.utils
import django.utils.connection
import psycopg
import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import qo
from tests.postgres import Server, new_schema


@pytest.fixture
async def place(server):
    schema = new_schema()
    async with qo.connect(f"{server.url}&schema={schema}") as client:
        yield client.queue("mail"), schema


async def got(queue) -> list[object]:
    return [delivery.payload for delivery in await queue.claim(10)]


def dsn(server: Server, driver: str = "") -> str:
    return server.url.replace("postgresql://", f"postgresql{driver}://")


async def asyncpg_way(server, schema, commit):
    connection = await asyncpg.connect(server.url)
    transaction = connection.transaction()
    await transaction.start()
    id = await qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
    await (transaction.commit() if commit else transaction.rollback())
    await connection.close()
    return id


async def psycopg_async_way(server, schema, commit):
    connection = await psycopg.AsyncConnection.connect(server.url)
    id = await qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
    await (connection.commit() if commit else connection.rollback())
    await connection.close()
    return id


async def psycopg_way(server, schema, commit):
    with psycopg.connect(server.url) as connection:
        id = qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
        connection.commit() if commit else connection.rollback()
    return id


async def sqlalchemy_way(server, schema, commit):
    engine = sqlalchemy.create_engine(dsn(server, "+psycopg"))
    with engine.connect() as connection:
        id = qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
        connection.commit() if commit else connection.rollback()
    engine.dispose()
    return id


async def sqlalchemy_session_way(server, schema, commit):
    engine = sqlalchemy.create_engine(dsn(server, "+psycopg"))
    with sqlalchemy.orm.Session(engine) as session:
        id = qo.enqueue(session, "mail", {"n": 1}, schema=schema)
        session.commit() if commit else session.rollback()
    engine.dispose()
    return id


async def sqlalchemy_async_way(server, schema, commit):
    engine = create_async_engine(dsn(server, "+asyncpg"))
    async with engine.connect() as connection:
        id = await qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
        await (connection.commit() if commit else connection.rollback())
    await engine.dispose()
    return id


async def sqlalchemy_async_session_way(server, schema, commit):
    engine = create_async_engine(dsn(server, "+psycopg"))
    async with AsyncSession(engine) as session:
        id = await qo.enqueue(session, "mail", {"n": 1}, schema=schema)
        await (session.commit() if commit else session.rollback())
    await engine.dispose()
    return id


def set_up_django() -> None:
    if not django.conf.settings.configured:
        django.conf.settings.configure()
        django.setup()


def django_connection(server):
    """A connection of Django's, as its settings make it."""
    set_up_django()
    parts = psycopg.conninfo.conninfo_to_dict(server.url)
    given = {"NAME": parts["dbname"], "USER": parts["user"], "HOST": parts["host"], "PORT": parts.get("port", "")}
    databases = {"default": {"ENGINE": "django.db.backends.postgresql", **given}}
    return django.db.utils.ConnectionHandler(databases)["default"]


async def django_way(server, schema, commit):
    def enqueue() -> str:
        connection = django_connection(server)
        connection.set_autocommit(False)
        id: str = qo.enqueue(connection, "mail", {"n": 1}, schema=schema)
        connection.commit() if commit else connection.rollback()
        connection.close()
        return id

    return await asyncio.to_thread(enqueue)  # Django refuses to work in a loop's thread


WAYS = [
    django_way,
    asyncpg_way,
    psycopg_async_way,
    psycopg_way,
    sqlalchemy_way,
    sqlalchemy_session_way,
    sqlalchemy_async_way,
    sqlalchemy_async_session_way,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_committed_it_runs_and_rolled_back_it_was_never_there(place, server, way):
    queue, schema = place
    await way(server, schema, False)
    assert await got(queue) == []
    id = await way(server, schema, True)
    [delivery] = await queue.claim()
    assert (delivery.id, delivery.payload) == (id, {"n": 1})


async def test_from_plain_sql(place, server):
    queue, schema = place
    id = server.psql(f"""SELECT {schema}.push('mail', '{{"a": 1}}', kind => 'send', key => 'k', priority => 3)""")
    [delivery] = await queue.claim()
    assert (delivery.id, delivery.payload) == (id, {"a": 1})
    assert (delivery.kind, delivery.key, delivery.delivered.priority) == ("send", "k", 3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("'', '1'", "queue: must be"),
        ("'q', 'not json'", "invalid input syntax for type json"),
        ("'q', '1', priority => 101", "priority: must be"),
        ("'q', '1', delay => '-1 s'", "delay: must not be negative"),
        ("'q', '1', key => ''", "key: must have"),
    ],
)
async def test_plain_sql_refuses_what_the_client_refuses(place, server, arguments, said):
    with pytest.raises(RuntimeError, match=said):
        server.psql(f"SELECT {place[1]}.push({arguments})")


async def test_a_waiting_claim_is_woken_by_the_commit(place, server):
    queue, schema = place
    waiting = asyncio.create_task(queue.claim(wait=30))
    await asyncio.sleep(0.2)
    await asyncpg_way(server, schema, True)
    [delivery] = await asyncio.wait_for(waiting, 5)
    assert delivery.payload == {"n": 1}


async def test_an_open_transaction_delays_nobody_else(place, server):
    """It holds no lock that a producer or a consumer waits for, of its own queue, key and dedupe key."""
    queue, schema = place
    connection = await asyncpg.connect(server.url)
    transaction = connection.transaction()
    await transaction.start()
    await qo.enqueue(connection, "mail", "held", key="k", dedupe="d", schema=schema)
    await queue.push("pushed", key="k", dedupe="d")
    other = await asyncpg.connect(server.url)
    await qo.enqueue(other, "mail", "enqueued", key="k", schema=schema)
    assert await got(queue) == ["pushed", "enqueued"]
    await transaction.commit()
    await connection.close()
    await other.close()


async def test_a_duplicate_ends_as_canceled_and_names_the_first(place, server):
    queue, schema = place
    first = await queue.push("first", dedupe="d")
    connection = await asyncpg.connect(server.url)
    second = await qo.enqueue(connection, "mail", "second", dedupe="d", schema=schema)
    await connection.close()
    assert await got(queue) == ["first"]
    [job] = [job for job in await queue.jobs() if job.id == second]
    assert (job.state, job.reason, job.error) == (qo.JobState.CANCELED, "duplicate", first.id)


async def test_a_dedupe_key_held_under_a_lease_that_ran_out_stands_in_nobodys_way(place, server):
    queue, schema = place
    await queue.push("first", dedupe="d")
    assert await queue.claim(lease=0.05)
    await asyncio.sleep(0.1)
    connection = await asyncpg.connect(server.url)
    await qo.enqueue(connection, "mail", "second", dedupe="d", schema=schema)
    await qo.enqueue(connection, "mail", "third", schema=schema)
    await connection.close()
    assert await got(queue) == ["first", "third"]


def test_another_object_is_refused():
    with pytest.raises(
        qo.Invalid, match="connection: must be a connection of asyncpg, psycopg 3, SQLAlchemy or Django"
    ):
        qo.enqueue(object(), "mail", 1)


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ('{"qo-sealed": "x"}', "for qo itself"),
        ('{"qo-anything": "x"}', "for qo itself"),
        ('{"a": 1}', "an object of texts"),
        ('{"a": null}', "an object of texts"),
        ('{"a": {"b": "c"}}', "an object of texts"),
        ('["a"]', "an object of texts"),
        ('"a"', "an object of texts"),
        ("1", "an object of texts"),
    ],
)
async def test_sql_pushes_no_headers_that_a_client_could_not(place, server, headers, says):
    queue, schema = place
    connection = await asyncpg.connect(server.url)
    with pytest.raises(asyncpg.InvalidParameterValueError, match=says):
        await connection.execute(f"SELECT {schema}.push('mail', '1', headers => $1::jsonb)", headers)
    many = {f"h{number}": "x" for number in range(65)}
    with pytest.raises(asyncpg.InvalidParameterValueError, match="at most 64"):
        await connection.execute(f"SELECT {schema}.push('mail', '1', headers => $1::jsonb)", json.dumps(many))
    assert await got(queue) == []
    await connection.execute(f"SELECT {schema}.push('mail', '1', headers => $1::jsonb)", '{"a": "b"}')
    await connection.execute(f"SELECT {schema}.push('mail', '2', headers => NULL)")
    await connection.close()
    assert sorted(map(str, await got(queue))) == ["1", "2"]


async def test_sql_cannot_push_what_it_cannot_seal(place, server):
    queue, schema = place
    await queue.configure(encrypt=True)
    connection = await asyncpg.connect(server.url)
    with pytest.raises(asyncpg.InvalidParameterValueError, match="seals its payloads"):
        await connection.execute(f"SELECT {schema}.push('mail', '1')")
    await connection.close()


async def test_django_s_own_name_for_its_connection_is_taken(place, server, monkeypatch):
    """`from django.db import connection` is a stand-in for the connection of the thread."""
    queue, schema = place

    def enqueue() -> str:
        handler = django.db.utils.ConnectionHandler({"default": django_connection(server).settings_dict})
        connection = django.utils.connection.ConnectionProxy(handler, "default")
        id: str = qo.enqueue(connection, "mail", 1, schema=schema)
        handler["default"].close()
        return id

    id = await asyncio.to_thread(enqueue)
    [delivery] = await queue.claim()
    assert delivery.id == id


def test_a_django_connection_of_another_database_is_refused():
    set_up_django()
    handler = django.db.utils.ConnectionHandler(
        {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )
    with pytest.raises(qo.Invalid, match="must be of a PostgreSQL database, not of sqlite"):
        qo.enqueue(handler["default"], "mail", 1)


NO_QO = "schema 'nowhere' of this database has no qo in it; run `qo migrate"


async def test_without_the_schema_it_says_what_to_run(server):
    connection = await asyncpg.connect(server.url)
    with pytest.raises(qo.Incompatible, match=NO_QO):
        await qo.enqueue(connection, "mail", 1, schema="nowhere")
    await connection.close()


def test_without_the_schema_it_says_so_through_other_drivers(server):
    with psycopg.connect(server.url) as plain, pytest.raises(qo.Incompatible, match=NO_QO):
        qo.enqueue(plain, "mail", 1, schema="nowhere")
    engine = sqlalchemy.create_engine(dsn(server, "+psycopg"))
    with engine.connect() as wrapped, pytest.raises(qo.Incompatible, match=NO_QO):
        qo.enqueue(wrapped, "mail", 1, schema="nowhere")
    engine.dispose()
    connection = django_connection(server)
    with pytest.raises(qo.Incompatible, match=NO_QO):
        qo.enqueue(connection, "mail", 1, schema="nowhere")
    connection.close()


async def test_what_waits_for_a_queue_that_does_not_exist_yet_is_seen(place, server):
    queue, schema = place
    id = await asyncpg_way(server, schema, True)
    async with qo.connect(f"{server.url}&schema={schema}") as client:
        [info] = await client.queues()
        assert (info.name, info.paused) == ("mail", False)
        assert await queue.exists()
        assert (await queue.depth()).delayed == 1
        assert [group.name for group in await queue.groups()] == ["default"]
        assert [job.id for job in await queue.jobs()] == [id]
        assert [job.id for job in await queue.jobs(state="queued")] == [id]
        with pytest.raises(qo.NotFound):
            await client.queue("another").depth()
        await client.queue("zebra").push(1)
        assert [each.name for each in await client.queues()] == ["mail", "zebra"]
        assert [each.name for each in await client.queues(after="mail")] == ["zebra"]
        [delivery] = await queue.claim()
        assert delivery.id == id
        assert [each.name for each in await client.queues()] == ["mail", "zebra"], "each once"


async def test_what_waits_for_a_queue_that_does_not_exist_yet_is_demand(place, server):
    """A manager with no workers waits for demand, and is woken by the very first enqueue."""
    _, schema = place
    async with qo.connect(f"{server.url}&schema={schema}") as client:
        broker = client.broker
        waiting = asyncio.create_task(broker.demand_or_wait(["mail"], "default", None, None))
        await asyncio.sleep(0.2)  # it has asked, and waits
        assert not waiting.done()
        await asyncpg_way(server, schema, True)
        demand = await asyncio.wait_for(waiting, 60)
        assert (demand.waiting, demand.runnable, demand.depth) == (1, 1, 1)
        assert (await broker.inspect.demand(["mail"], "default", ["other"])).depth == 0
