"""What is at rest when a queue seals its payloads, and who can open it."""

from __future__ import annotations

import hmac
from dataclasses import replace

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from qo.core.errors import Incompatible, Invalid
from qo.core.message import SEALED
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sealing import Stored, Unreadable, key_of, new_key, opened, read_key, sealed
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.saying import ORDERS, claim, failed, message, new_id, payloads, settle
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
