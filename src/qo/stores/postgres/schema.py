"""Migrations: numbered files, forward only, one at a time under an advisory lock.

The functions in `sql/` belong to the newest migration and are replaced with it. An
older qo keeps working on a schema that is one version newer; more is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from typing import Any, NamedTuple

import asyncpg

from qo.core.errors import Incompatible
from qo.core.fate import FRAGILE_LOSSES
from qo.core.lease import BUDGETS_AT_ONCE, CLAIM_BYTES, QUEUES_LIMIT
from qo.core.message import HEADER_BYTES_LIMIT, HEADER_COUNT_LIMIT, PRIORITY_LIMIT
from qo.core.names import KEY_LIMIT, NAME_LIMIT
from qo.core.queue import WINDOW_FULL, History, QueueSettings, plain_value
from qo.core.retention import CHECK_DEDUPE, KEEP_NONCES, KEEP_SETTLED, KEEP_TRACES, NOTE_CLAIMED, TIDY_AFTER
from qo.core.retry import LARGEST_EXPONENT

VERSIONS_AHEAD = 1
"""How much newer a schema may be than this qo."""

FUNCTIONS = (
    "lanes", "outcomes", "records", "push", "advance", "take", "claim", "settle", "ack", "groups", "tidy", "enqueue",
    "planning", "guards", "roles",
)  # fmt: skip
"""The files of `sql/`, in the order in which they build on each other."""

CONSTANTS = {
    "fragile_losses": FRAGILE_LOSSES,
    "window_full": WINDOW_FULL,
    "largest_exponent": f"{LARGEST_EXPONENT:g}",
    "queues_limit": QUEUES_LIMIT,
    "claim_bytes": CLAIM_BYTES,
    "budgets_at_once": BUDGETS_AT_ONCE,
    "name_limit": NAME_LIMIT,
    "key_limit": KEY_LIMIT,
    "priority_limit": PRIORITY_LIMIT,
    "header_count_limit": HEADER_COUNT_LIMIT,
    "header_bytes_limit": HEADER_BYTES_LIMIT,
    **{
        name: f"{length.total_seconds():g} s"
        for name, length in {
            "keep_settled": KEEP_SETTLED,
            "keep_nonces": KEEP_NONCES,
            "keep_traces": KEEP_TRACES,
            "check_dedupe": CHECK_DEDUPE,
            "tidy_after": TIDY_AFTER,
            "note_claimed": NOTE_CLAIMED,
        }.items()
    },
}
"""Numbers that Python knows, too: `{name}` stands for them in the functions."""

_NUMBERED = re.compile(r"^(\d{4})_\w+\.sql$")


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations, in order; the newest brings the functions."""
    folder = files(__package__) / "migrations"
    found = [(match, entry) for entry in folder.iterdir() if (match := _NUMBERED.match(entry.name))]
    return sorted(Migration(int(match[1]), entry.name, entry.read_text()) for match, entry in found)


def functions(names: Sequence[str] = FUNCTIONS) -> str:
    """The functions, in place of those of the version before."""
    folder = files(__package__) / "sql"
    text = "\n".join((folder / f"{name}.sql").read_text() for name in names)
    for name, value in CONSTANTS.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")


async def give_rights(connection: asyncpg.Connection[Any], schema: str) -> None:
    """To the roles that the operator has created since the last migration, or before."""
    await connection.execute(in_schema(functions(["roles"]), schema))


DROP_TYPES = """
DO $$ DECLARE t text; BEGIN
    FOR t IN SELECT c.relname FROM pg_class c WHERE c.relnamespace = '{schema}'::regnamespace AND c.relkind = 'c' LOOP
        EXECUTE format('DROP TYPE "{schema}".%I CASCADE', t);
    END LOOP;
END $$
"""
"""Types cannot be replaced; the functions that speak of them go with them, and are made anew."""


def in_schema(sql: str, schema: str) -> str:
    """The same SQL for another schema: names, and the channel of hints."""
    return re.sub(r"\bqo\.(?=\w)", f'"{schema}".', sql).replace("pg_notify('qo'", f"pg_notify('{schema}'")


async def version(connection: asyncpg.Connection[Any], schema: str) -> int:
    """The newest migration that the schema has seen; 0 if there is none."""
    # In one statement: another process may be making the tables just now.
    names = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
    if "migrations" not in [row[0] for row in names]:
        if names:
            raise Incompatible(f"schema '{schema}' has tables of another program; name one with ?schema=")
        return 0
    found: int = await connection.fetchval(in_schema("SELECT coalesce(max(number), 0) FROM qo.migrations", schema))
    return found


def check(found: int, newest: int, schema: str) -> None:
    if found > newest + VERSIONS_AHEAD:
        raise Incompatible(
            f"schema '{schema}' is at version {found}, made by a newer qo; this one knows up to {newest}. Upgrade qo"
        )


async def bring_forward(
    connection: asyncpg.Connection[Any], schema: str, known: list[Migration] | None = None, *, dry_run: bool = False
) -> list[Migration]:
    """Apply what is missing, each migration in its own transaction; answers what was, or would be, applied."""
    known = known or migrations()
    applied = []
    for migration in known:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _lock_key(schema))
            found = await version(connection, schema)
            check(found, known[-1].number, schema)
            if found >= migration.number:
                continue
            applied.append(migration)
            if not dry_run:
                await _apply(connection, schema, migration, newest=migration is known[-1])
    return applied


async def _apply(connection: asyncpg.Connection[Any], schema: str, migration: Migration, *, newest: bool) -> None:
    await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    await connection.execute(in_schema(migration.sql, schema))
    if newest:
        await connection.execute(DROP_TYPES.format(schema=schema))
        await connection.execute(in_schema(functions(), schema))
        await connection.execute(in_schema("DELETE FROM qo.defaults", schema))
        await connection.execute(in_schema("INSERT INTO qo.defaults (rules) VALUES ($1)", schema), default_rules())
        await _rewrite_rules(connection, schema)
    await connection.execute(in_schema("INSERT INTO qo.migrations (number) VALUES ($1)", schema), migration.number)


async def _rewrite_rules(connection: asyncpg.Connection[Any], schema: str) -> None:
    """Queues from before say nothing about settings that are new."""
    for name, text in await connection.fetch(in_schema("SELECT name, settings::text FROM qo.queues", schema)):
        rules = rules_text(QueueSettings().changed(json.loads(text)))
        await connection.execute(in_schema("UPDATE qo.queues SET rules = $2 WHERE name = $1", schema), name, rules)


def default_rules() -> str:
    return rules_text(QueueSettings())


def rules_text(settings: QueueSettings) -> str:
    """All settings as the functions read them, durations in seconds; and whether a push must do more than append."""
    adorned = (
        settings.history is History.FULL
        or settings.ttl is not None
        or settings.max_size is not None
        or settings.encrypt
        or bool(settings.delay or settings.window)
    )
    return json.dumps({**asdict(settings), "notes": {}, "adorned": adorned}, default=plain_value)


def _lock_key(schema: str) -> int:
    digest = hashlib.blake2b(f"qo migrations {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)
