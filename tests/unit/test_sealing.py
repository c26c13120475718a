"""What is at rest when a queue seals its payloads, and who can open it."""

from __future__ import annotations

import hmac
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from qo.core.errors import Incompatible, Invalid
from qo.core.lease import Nothing
from qo.core.message import SEALED, id_text
from qo.core.queue import QueueSettings
from qo.core.verbs import Engine
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sealing import SealingKey, Stored, Unreadable, key_of, new_key, opened, read_key, sealed
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.saying import ORDERS, claim, done, failed, message, messages, new_id, payloads, settle, want
from tests.postgres import Server, new_schema

SECRET = b'{"card": "4111-1111-1111-1111"}'
KEY = key_of(bytes(range(32)))


@pytest.fixture(scope="module")
def database():
    server = Server().start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path, database):
    """How to open a store with a key, or none; and how to read all that it keeps."""
    if request.param == "sqlite":
        path = tmp_path / "qo.db"

        def at_rest() -> bytes:
            return b"".join(each.read_bytes() for each in tmp_path.iterdir())

        return (lambda key=None: SqliteEngine.open(str(path), key=key)), at_rest
    address = replace(read_address(database.url), schema=new_schema(), pool=2)

    def dumped() -> bytes:
        tables = ("messages", "intake", "dead_letters")
        rows = [database.psql(f"SELECT encode(payload, 'escape') FROM {address.schema}.{each}") for each in tables]
        return "\n".join(rows).encode()

    return (lambda key=None: PostgresEngine.open(address, key=key)), dumped


async def fill(engine) -> None:
    await engine.configure(ORDERS, {"encrypt": True, "retry": {"attempts": 1}})
    await engine.push([message(payload=SECRET), message(payload=SECRET, key="k")])
    [one, *_] = await claim(engine, messages=1)
    await settle(engine, failed(one))


async def test_nothing_at_rest_shows_the_payload(place):
    open_store, at_rest = place
    engine = await open_store()
    await fill(engine)
    assert b"4111" not in at_rest()
    await engine.close()
    again = await open_store()
    assert payloads(await claim(again)) == [SECRET], "the store has kept its key"
    [letter] = await again.dead(ORDERS, None, None, 10)
    assert letter.payload == SECRET
    await again.close()


async def test_the_operator_s_key_is_not_kept_and_is_asked_for(place):
    open_store, at_rest = place
    engine = await open_store(KEY)
    await fill(engine)
    await engine.close()
    assert KEY.value not in at_rest()
    with pytest.raises(Incompatible, match=KEY.id):
        await open_store()
    with pytest.raises(Incompatible, match=KEY.id):
        await open_store(new_key())
    again = await open_store(KEY)
    assert payloads(await claim(again)) == [SECRET]
    await again.close()


async def test_another_process_finds_a_key_that_was_made_meanwhile(place):
    open_store, _ = place
    one, two = await open_store(), await open_store()
    await fill(one)
    assert payloads(await claim(two)) == [SECRET]
    await one.close()
    await two.close()


# What cannot be opened


class Vault:
    """A store whose rows somebody else can change."""

    def __init__(self, kind: str, folder: Path, database: Server) -> None:
        self._path = folder / "qo.db"
        self._database = database
        self._address = replace(read_address(database.url), schema=new_schema(), pool=2)
        self._is_file = kind == "sqlite"

    async def open(self, key: SealingKey | None = None) -> Engine:
        if self._is_file:
            return await SqliteEngine.open(str(self._path), key=key)
        return await PostgresEngine.open(self._address, key=key)

    def change(self, id: bytes, **columns: Any) -> None:
        """Write into the row of a message, whatever qo thinks of that."""
        if self._is_file:
            said = ", ".join(f"{name} = ?" for name in columns)
            self._ask(f"UPDATE messages SET {said} WHERE id = ?", *columns.values(), id)
            return
        said = ", ".join(f"{name} = {self._quoted(value)}" for name, value in columns.items())
        self._database.psql(f"UPDATE {self._address.schema}.messages SET {said} WHERE id = '{id.hex()}'")

    def make_newer(self, id: bytes) -> None:
        """By an hour: where pushes are made beside a configure, some do not see it yet, and are given time."""
        if not self._is_file:
            self._database.psql(
                f"UPDATE {self._address.schema}.messages SET created_at = created_at + '1 hour' WHERE id = '{id.hex()}'"
            )

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        connection = apsw.Connection(str(self._path))
        try:
            return connection.execute(sql, values).fetchall()
        finally:
            connection.close()

    def _quoted(self, value: Any) -> str:
        if value is None:
            return "NULL"
        return f"'\\x{value.hex()}'::bytea" if isinstance(value, bytes) else f"'{value}'"

    def stored(self, id: bytes) -> tuple[bytes, str]:
        if self._is_file:
            [found] = self._ask("SELECT payload, headers FROM messages WHERE id = ?", id)
            return found
        said = self._database.psql(
            f"SELECT encode(payload, 'hex'), headers FROM {self._address.schema}.messages WHERE id = '{id.hex()}'"
        )
        payload, _, headers = said.partition("|")
        return bytes.fromhex(payload), headers


@pytest.fixture(params=["sqlite", "postgres"])
def vault(request, tmp_path, database) -> Vault:
    return Vault(request.param, tmp_path, database)


SEALED_QUEUE = {"encrypt": True}


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_payload_that_cannot_be_opened_is_buried_and_the_queue_goes_on(vault, key):
    store = await vault.open()
    await store.configure(ORDERS, SEALED_QUEUE)
    batch = [message(payload=b"%d" % number, key=key) for number in range(5)]
    await store.push(batch)
    payload, _ = vault.stored(batch[2].id)
    vault.change(batch[2].id, payload=payload[:-1] + bytes([payload[-1] ^ 1]))
    seen: list[bytes] = []
    while taken := await claim(store):
        seen += payloads(taken)
        await settle(store, *map(done, taken))
    assert seen == [b"0", b"1", b"3", b"4"], "in order, and nothing waits for it"
    [letter] = await store.dead(ORDERS, None, None, 10)
    assert (letter.id, letter.reason) == (id_text(batch[2].id), "unreadable")
    assert "changed or moved" in (letter.error or "")
    [job] = await store.jobs([batch[2].id])
    assert (job.state, job.reason) == ("failed", "unreadable")
    assert store.unreadable == 1
    depth = await store.depth(ORDERS, "default")
    assert (depth.ready, depth.leased, depth.dead) == (0, 0, 1)
    await store.close()


async def test_all_that_cannot_be_opened_is_buried_though_nothing_else_is_there(vault):
    store = await vault.open()
    await store.configure(ORDERS, SEALED_QUEUE)
    batch = [*messages(3), *messages(2, key="k")]
    await store.push(batch)
    for each in batch:
        vault.change(each.id, payload=b"garbage")
    assert await claim(store) == []
    while len(await store.dead(ORDERS, None, None, 10)) < 5:
        assert await claim(store) == []
    assert store.unreadable == 5
    await store.close()


async def test_a_payload_that_was_swapped_with_another_s_is_not_delivered(vault):
    store = await vault.open()
    await store.configure(ORDERS, SEALED_QUEUE)
    one, two = message(payload=b"one", key="a"), message(payload=b"two", key="b")
    await store.push([one, two])
    (first, first_headers), (second, second_headers) = vault.stored(one.id), vault.stored(two.id)
    vault.change(one.id, payload=second, headers=second_headers)
    vault.change(two.id, payload=first, headers=first_headers)
    while len(await store.dead(ORDERS, None, None, 10)) < 2:
        assert await claim(store) == []
    await store.close()


async def test_a_payload_that_is_not_sealed_is_refused_where_the_queue_is(vault):
    store = await vault.open()
    old = message(payload=b"old")
    await store.push([old])
    await store.configure(ORDERS, SEALED_QUEUE)
    new = message(payload=b"new")
    await store.push([new])
    vault.change(new.id, payload=b"planted", headers=None)
    vault.make_newer(new.id)
    assert payloads(await claim(store)) == [b"old"], "what was there before the queue was sealed is as it was"
    while not (letters := await store.dead(ORDERS, None, None, 10)):
        assert await claim(store) == []
    assert "is not sealed" in (letters[0].error or "")
    await store.close()


async def test_a_key_that_nobody_knows_is_no_reason_to_wait(vault):
    store = await vault.open()
    await store.configure(ORDERS, SEALED_QUEUE)
    one = message(payload=b"1")
    await store.push([one, message(payload=b"2")])
    vault.change(one.id, headers='{"qo-sealed": "2:0000000000000000:00"}')
    seen = payloads(await claim(store)) or payloads(await claim(store))
    assert seen == [b"2"]
    [letter] = await store.dead(ORDERS, None, None, 10)
    assert "which this store does not know" in (letter.error or "")
    await store.close()


async def test_a_process_without_the_operator_s_key_buries_nothing(vault):
    """It was opened before there was one: what it claims goes back, for those who have it."""
    without = await vault.open()
    await without.configure(ORDERS, SEALED_QUEUE)
    having = await vault.open(KEY)
    await having.push([message(payload=SECRET), message(payload=SECRET, key="k")])
    with pytest.raises(Incompatible, match=f"sealed with key {KEY.id}, which is not here"):
        await claim(without)
    assert await without.dead(ORDERS, None, None, 10) == []
    assert without.unreadable == 0
    taken = await claim(having)
    assert payloads(taken) == [SECRET, SECRET]
    assert {each.attempt for each in taken} == {1}
    await without.close()
    await having.close()


async def test_whoever_claims_beside_one_that_lacks_a_key_is_served(vault):
    without = await vault.open()
    await without.configure(ORDERS, SEALED_QUEUE)
    having = await vault.open(KEY)
    await without.push([message("plain", b"1"), message("plain", b"2")])
    await having.push([message(payload=SECRET)])
    [held] = await claim(without, "plain", messages=1)
    wants = [want("plain", named=True), want(ORDERS, named=True)]
    answers, claims = await without.settle([done(held)], wants)
    assert [each.answer for each in answers] == ["settled"], "what was settled stays settled"
    assert payloads(list(claims[0].deliveries)) == [b"2"]
    assert isinstance(claims[1], Nothing)
    assert claims[1].ask_again is not None, "it looks again, later"
    assert payloads(await claim(having)) == [SECRET]
    await without.close()
    await having.close()


async def test_a_dead_letter_of_a_sealed_queue_is_retried(vault):
    store = await vault.open()
    await store.configure(ORDERS, {"encrypt": True, "retry": {"attempts": 1}})
    await store.push([message(payload=SECRET)])
    await settle(store, *map(failed, await claim(store)))
    await store.retry_dead(ORDERS, "default", None)
    assert payloads(await claim(store)) == [SECRET], "under its new id"
    await store.close()


def test_since_when_a_queue_is_sealed_is_written_by_qo():
    now = datetime(2026, 1, 1, tzinfo=UTC)
    sealed_then = QueueSettings().configured({"encrypt": True}, now)
    assert sealed_then.sealed_since == now
    later = now + timedelta(days=1)
    assert sealed_then.configured({"retain": 5}, later).sealed_since == now
    assert sealed_then.configured({"encrypt": False}, later).sealed_since is None
    with pytest.raises(Invalid, match="is written by qo"):
        QueueSettings().configured({"sealed_since": later}, later)


def test_a_seal_binds_the_queue_and_repeats_for_a_repeat():
    first = message(payload=SECRET)
    once, twice = sealed(first, KEY), sealed(first, KEY)
    assert once == twice
    assert sealed(once, KEY) is once
    assert sealed(message(payload=SECRET), KEY).payload != once.payload, "another message, another nonce"
    stored = Stored(ORDERS, None, once.id, once.payload, once.headers)
    assert opened(lambda _: KEY.value, stored) == (SECRET, {})
    for change in (
        {"queue": "elsewhere"},
        {"key": "another"},
        {"id": new_id()},
        {"payload": once.payload[:-1] + bytes([once.payload[-1] ^ 1])},
        {"payload": b"short"},
        {"headers": {SEALED: KEY.id}},
        {"headers": {SEALED: f"2:{KEY.id}:none"}},
    ):
        with pytest.raises(Unreadable):
            opened(lambda _: KEY.value, stored._replace(**change))
    assert opened(lambda _: KEY.value, stored._replace(id=new_id()), retried=True) == (SECRET, {})


def test_one_id_in_two_queues_or_keys_has_two_nonces():
    first = message(payload=SECRET)
    others = [
        msgspec.structs.replace(first, **change) for change in ({"queue": "other"}, {"key": "k"}, {"payload": b"2"})
    ]
    nonces = {sealed(each, KEY).payload[:12] for each in (first, *others)}
    assert len(nonces) == 4, "with one nonce, two payloads give the key of their seals away"


def test_a_seal_of_the_first_form_is_opened():
    cipher = AESGCM(hmac.digest(KEY.value, b"qo seal", "sha256"))
    payload = bytes(12) + cipher.encrypt(bytes(12), SECRET, ORDERS.encode())
    stored = Stored(ORDERS, "any", new_id(), payload, {SEALED: KEY.id, "a": "b"})
    assert opened(lambda _: KEY.value, stored) == (SECRET, {"a": "b"})


@pytest.mark.parametrize("text", ["short", "zz" * 32, "00" * 31])
def test_a_bad_key_is_refused(text):
    with pytest.raises(Invalid, match="64 hexadecimal digits"):
        read_key(text)
