"""An older qo keeps working on a schema that is one version newer: what version 4 says is still understood."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.schema import in_schema
from tests.conformance.saying import claim, messages, new_id
from tests.postgres import Server, new_schema

SERVED = "SELECT want, wait, owner_limited, contended, signal, (haul).* FROM "
CLAIM_ONE = SERVED + "qo.claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
CLAIM = SERVED + "qo.claim($1, ROW($2, $3, $4, $5, $6, $7, $8, $9)::qo.plain_claims, $10, $11)"
SETTLE_DONE = """SELECT signal, ended FROM qo.settle_done($1, $2, $3::text[]::int8multirange[], $4, $5, $6, $7,
    ROW($8, $9, $10, $11, $12, $13, $14, $15)::qo.plain_claims, $16)"""
PUSH_ANY = "SELECT answer FROM qo.push_any($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
ENQUEUE = "SELECT qo.enqueue($1, 'orders', '1', 'default', NULL, 0, NULL, NULL, NULL, NULL, true)"


@pytest.fixture
async def store():
    server = Server().start()
    engine = await PostgresEngine.open(replace(read_address(server.url), schema=new_schema()))
    yield engine
    await engine.close()
    server.remove()


async def test_what_version_4_says_is_understood(store):
    async def ask(sql, *values):
        return await store.call("ask", lambda c, _: c.fetch(in_schema(sql, store.address.schema), *values))

    await store.push(messages(5))
    await claim(store, messages=1)  # the group has claimed once
    wants = json.dumps([{"token": "t1", "queues": ["orders"], "group": "default", "messages": 2}])
    [row] = await ask(CLAIM_ONE, wants, "t1", "orders", "default", 2, None, None, False, None, False, None)
    assert len(row["ids"]) == 2
    wants = wants.replace("t1", "t2")
    plain = (["t2"], ["orders"], ["default"], [2], [None], [None], False, [None])
    [row] = await ask(CLAIM, wants, *plain, False, None)
    assert len(row["ids"]) == 2
    done = (["t2"], [row["lane_id"]], ["{[3,5)}"], ["{3,4}"], [None], None)
    [row] = await ask(SETTLE_DONE, *done, None, *(None,) * 8, None)
    assert row["signal"] == "items"  # and it then says so item by item, as it always could
    pushed = [["orders"], [None], ["default"], [0], [new_id()], [b"1"], [None], [None], [None], [None], []]
    [row] = await ask(PUSH_ANY, *pushed, None)
    assert row["answer"] == "stored"
    assert len(await claim(store)) == 1
    await ask(ENQUEUE, new_id())
    assert len(await claim(store)) == 1
