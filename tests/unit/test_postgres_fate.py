"""The same reports, losses and backoffs through `core` and through the SQL functions: one table, equal answers."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from qo.core.fate import Again, Back, Canceled, Dead, Fate, Standing, fate_of_loss, fate_of_report
from qo.core.lease import Bury, Fail, Release
from qo.core.queue import QueueSettings, plain_value
from qo.core.retry import RetryPolicy
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.postgres.settle import report_text
from tests.postgres import new_schema

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER, EARLIER = NOW + timedelta(seconds=1), NOW - timedelta(seconds=1)
POLICIES = [
    RetryPolicy(),
    RetryPolicy(jitter=0.5, attempts=1),
    RetryPolicy(multiplier=1.05, attempts=1000),
    RetryPolicy(multiplier=1, delay=7, jitter=0),
    RetryPolicy(multiplier=1e9, delay=0.000001, max_delay=36500 * 86400),
    RetryPolicy(multiplier=3, delay=0),
    RetryPolicy(multiplier=1.5, delay=100, max_delay=10),
    RetryPolicy(delay=36500 * 86400, max_delay=36500 * 86400, multiplier=1e300),
]
REPORTS = [
    Fail("no"),
    Fail("no", timedelta(seconds=3)),
    Fail("no", timedelta(0)),
    Fail("no", limit=1),
    Fail("no", limit=9),
    Fail("later", timedelta(seconds=9), free=True),
    Release(),
    Release(after_done=True),
    Bury("bad"),
]
STANDINGS = [
    Standing(attempts=attempts, losses=losses, canceled=canceled, expired=expired)
    for attempts, losses, canceled, expired in itertools.product(
        (0, 3, 4, 8), (0, 1, 2, 4), (False, True), (False, True)
    )
]
SETTINGS = [
    QueueSettings(retry=RetryPolicy(jitter=0.2)),
    QueueSettings(retry=RetryPolicy(attempts=9, multiplier=1.3), dead_letters=False, max_lost=3),
    QueueSettings(max_lost=0),
]
DRAWS = [0.0, 0.25, 0.999]


@pytest.fixture(scope="module")
def schema():
    return new_schema()


@pytest.fixture
async def connection(server, schema):
    engine = await PostgresEngine.open(replace(read_address(server.url), schema=schema))
    await engine.close()
    connection = await asyncpg.connect(server.url)
    yield connection
    await connection.close()


def rules(settings: QueueSettings) -> str:
    """As the column has them."""
    plain = {name: plain_value(value) for name, value in asdict(settings).items() if name != "retry"}
    return json.dumps({**plain, "retry": {name: plain_value(value) for name, value in asdict(settings.retry).items()}})


@pytest.mark.parametrize("policy", POLICIES, ids=str)
async def test_a_rest_is_as_long_in_sql(connection, schema, policy):
    failures = [1, 2, 3, 10, 100, 150, 1000, 2**31 - 1]
    for draw in DRAWS:
        rows = await connection.fetch(
            f'SELECT "{schema}".rest_after($1, n, $2) FROM unnest($3::integer[]) WITH ORDINALITY AS u (n, i)'
            " ORDER BY i",
            rules(QueueSettings(retry=policy)),
            draw,
            failures,
        )
        for count, (found,) in zip(failures, rows, strict=True):
            expected = policy.rest(count, draw)
            assert abs(found - expected) <= max(timedelta(microseconds=1), expected * 1e-12), (count, draw)


def ending(fate: Fate) -> tuple[object, ...]:
    """A fate as the functions tell it: verdict, when again, reason, attempts, losses."""
    match fate:
        case Again(at, attempts, losses):
            return "retrying", at, None, attempts, losses
        case Back():
            return ("released",)
        case Dead(reason, _, attempts, losses, kept):
            return "buried" if kept else "dropped", None, reason, attempts, losses
        case Canceled(reason):
            return "canceled", None, reason
        case _:
            raise AssertionError(fate)


async def test_a_report_ends_alike_in_sql(connection, schema):
    query = f"""
        SELECT f.verdict, f.at, f.reason, f.attempts, f.losses
        FROM unnest($1::jsonb[], $2::integer[], $3::integer[], $4::boolean[], $5::boolean[], $6::text[], $7::float8[],
                    $8::float8[])
            WITH ORDINALITY AS t (rules, attempts, losses, canceled, expired, what, after, draw, number)
        CROSS JOIN LATERAL "{schema}".fate_of_report(
            jsonb_populate_record(NULL::"{schema}".queues, jsonb_build_object('rules', t.rules)),
            jsonb_populate_record(NULL::"{schema}".leases, jsonb_build_object(
                'lane_id', CASE WHEN t.expired THEN 1 ELSE 2 END,
                'canceled', CASE WHEN t.canceled THEN '{{0}}' ELSE '{{}}' END)),
            (0, 0, t.what, '', t.after, NULL, NULL)::"{schema}".report,
            t.attempts, t.losses, t.draw, $9) AS f
        ORDER BY t.number
    """
    cases = list(itertools.product(SETTINGS, STANDINGS, REPORTS, DRAWS))
    await put_messages(connection, schema)
    rows = await connection.fetch(
        query,
        [rules(settings) for settings, *_ in cases],
        [standing.attempts for _, standing, *_ in cases],
        [standing.losses for _, standing, *_ in cases],
        [standing.canceled for _, standing, *_ in cases],
        [standing.expired for _, standing, *_ in cases],
        [report_text(report) for _, _, report, _ in cases],
        [
            None if not isinstance(report, Fail) or report.after is None else report.after.total_seconds()
            for _, _, report, _ in cases
        ],
        [draw for *_, draw in cases],
        NOW,
    )
    for (settings, standing, report, draw), row in zip(cases, rows, strict=True):
        expected = ending(fate_of_report(report, standing, settings, NOW, draw))
        assert tuple(row)[: len(expected)] == expected, (settings, standing, report)


async def test_a_loss_ends_alike_in_sql(connection, schema):
    query = f"""
        SELECT f.ending, f.again_at
        FROM unnest($1::jsonb[], $2::integer[], $3::boolean[], $4::boolean[], $5::float8[])
            WITH ORDINALITY AS t (rules, losses, canceled, expired, draw, number)
        CROSS JOIN LATERAL "{schema}".fate_of_loss(
            jsonb_populate_record(NULL::"{schema}".queues, jsonb_build_object('rules', t.rules)),
            jsonb_populate_record(NULL::"{schema}".leases, jsonb_build_object(
                'lane_id', CASE WHEN t.expired THEN 1 ELSE 2 END,
                'expires_at', $6::timestamptz, 'canceled', CASE WHEN t.canceled THEN '{{0}}' ELSE '{{}}' END)),
            0, t.losses + 1, t.draw) AS f
        ORDER BY t.number
    """
    cases = list(itertools.product(SETTINGS, STANDINGS, DRAWS))
    await put_messages(connection, schema)
    rows = await connection.fetch(
        query,
        [rules(settings) for settings, *_ in cases],
        [standing.losses for _, standing, _ in cases],
        [standing.canceled for _, standing, _ in cases],
        [standing.expired for _, standing, _ in cases],
        [draw for *_, draw in cases],
        NOW,
    )
    for (settings, standing, draw), row in zip(cases, rows, strict=True):
        fate = fate_of_loss(standing, settings, NOW, draw)
        expected = (None, fate.at) if isinstance(fate, Again) else (ending(fate)[2], None)
        assert tuple(row) == expected, (settings, standing, draw)


async def put_messages(connection: asyncpg.Connection, schema: str) -> None:
    """In lane 1 a message whose time to live is over; in lane 2 one that lives."""
    await connection.execute(f'TRUNCATE "{schema}".messages')
    for lane, expires_at in ((1, EARLIER), (2, LATER)):
        await connection.execute(
            f'INSERT INTO "{schema}".messages'
            ' (lane_id, "offset", id, payload, created_at, due_at, entered_at, expires_at)'
            " VALUES ($1, 0, gen_random_uuid(), '1', $2, $2, $2, $3)",
            lane,
            EARLIER,
            expires_at,
        )
