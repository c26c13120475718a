"""Bring a schema forward without opening the engine: `qo migrate`."""

from __future__ import annotations

from qo.stores.postgres import schema
from qo.stores.postgres.address import Address
from qo.stores.postgres.pool import Connection, Pool

MIGRATING_SECONDS = 3570.0
"""How much longer than others a migration may take: it may have to rewrite tables."""


async def migrate(address: Address, *, dry_run: bool) -> list[str]:
    """The names of the migrations that were, or would be, applied."""
    pool = Pool(address)

    async def work(connection: Connection, _: bool) -> list[str]:
        applied = await schema.bring_forward(connection, address.schema, dry_run=dry_run)
        if not dry_run:
            await schema.give_rights(connection, address.schema)
        return [migration.name for migration in applied]

    try:
        return await pool.call(work, extra_seconds=MIGRATING_SECONDS)
    finally:
        await pool.close()


async def version_of(address: Address) -> int:
    """The newest migration that the schema has seen; 0 if there is no schema."""
    pool = Pool(address)
    try:
        return await pool.call(lambda connection, _: schema.version(connection, address.schema))
    finally:
        await pool.close()
