"""An older qo keeps working on a schema that is one version newer: what version 3 says is still understood."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.schema import in_schema
from tests.conformance.saying import claim, messages
from tests.postgres import Server, new_schema

SERVED = "SELECT want, wait, owner_limited, contended, signal, (haul).* FROM "
CLAIM_ONE = SERVED + "qo.claim_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
CLAIM = SERVED + "qo.claim($1, ROW($2, $3, $4, $5, $6, $7, $8)::qo.plain_wants, $9, $10)"
SETTLE_DONE = """SELECT signal, ended FROM qo.settle_done($1, $2, $3::text[]::int8multirange[], $4,
    ROW($5, $6, $7, $8, $9, $10, $11)::qo.plain_wants, $12)"""


@pytest.fixture
async def store():
    server = Server().start()
    engine = await PostgresEngine.open(replace(read_address(server.url), schema=new_schema()))
    yield engine
    await engine.close()
    server.remove()


async def test_what_version_3_says_is_understood(store):
    async def ask(sql, *values):
        return await store.call("ask", lambda c, _: c.fetch(in_schema(sql, store.address.schema), *values))

    await store.push(messages(5))
    await claim(store, messages=1)  # the group has claimed once
    wants = json.dumps([{"token": "t1", "queues": ["orders"], "group": "default", "messages": 2}])
    [row] = await ask(CLAIM_ONE, wants, "t1", "orders", "default", 2, None, None, False, False, None)
    assert len(row["ids"]) == 2
    wants = wants.replace("t1", "t2")
    plain = (["t2"], ["orders"], ["default"], [2], [None], [None], False)
    [row] = await ask(CLAIM, wants, *plain, False, None)
    assert len(row["ids"]) == 2
    [row] = await ask(SETTLE_DONE, ["t2"], [row["lane_id"]], ["{[3,5)}"], None, *(None,) * 7, None)
    assert row["signal"] == "items"  # and it then says so item by item, as it always could
