"""`qo migrate`: bring a database's schema forward."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from qo.cli.configuration import read_configuration
from qo.cli.opened import say_store, saying_that_it_is_away
from qo.stores.opening import migrate


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "migrate",
        help="bring a database's schema forward",
        description="Apply the migrations that a PostgreSQL schema has not seen, one at a time under a lock. Servers "
        "and workers do the same when they start; this does it beforehand. An older qo keeps working on a schema that "
        "is one version newer.",
    )
    command.add_argument(
        "url", nargs="?", help="postgresql://…, with ?schema= if it is not qo (default: the configured store)"
    )
    command.add_argument("--config", metavar="FILE", help="the configuration (default qo.toml, if there is one)")
    command.add_argument("--dry-run", action="store_true", help="say what would be applied, and change nothing")
    command.set_defaults(run=lambda given: asyncio.run(_migrate(given)))


async def _migrate(given: argparse.Namespace) -> int:
    configuration = read_configuration(path=given.config)
    if given.url is not None:
        configuration = configuration.with_value("store", given.url, "the command line")
    say_store("migrate", configuration.store)
    async with saying_that_it_is_away("migrate", configuration.store):
        names = await migrate(configuration["store"], dry_run=given.dry_run)
    for name in names:
        print(f"{'would apply' if given.dry_run else 'applied'} {name}")
    if not names:
        print("nothing to do: the schema is up to date")
    return 0
