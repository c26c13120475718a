"""A client for a command: on the store or server that it names."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from qo.cli.configuration import Configuration, read_configuration
from qo.client.client import Client
from qo.connect import connect, is_server
from qo.core.errors import NotFound, Unauthenticated
from qo.environment import TOKEN_VARIABLE, Chosen, token_for
from qo.stores.opening import store_exists, without_password

PATIENCE_SECONDS = 5
"""How long a command looks for a server that answers."""
QUIET_SECONDS = 0.8
"""A store that has not answered for so long is said to be away."""
MAKE_STORES = (("push", None), ("token", None), ("schedules", "create"))
"""Commands, and actions of theirs (None: any), that make the store if there is none."""

Run = Callable[[Client, argparse.Namespace], Awaitable[int]]


def on_a_store(command: argparse.ArgumentParser, run: Run) -> None:
    """Give a command the options that say where it works, and run it there."""
    add_store_options(command)
    command.add_argument("--json", action="store_true", help="print JSON")
    command.set_defaults(run=lambda given: asyncio.run(_opened(given, run)))


def add_store_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--store",
        metavar="URL",
        help="a store (sqlite:///…, postgresql://…) or a server (http://…); default: QO_STORE, else qo.toml, "
        "else sqlite:///qo.db",
    )
    command.add_argument("--token", help=f"the token for a server (default: the variable {TOKEN_VARIABLE})")
    command.add_argument("--config", metavar="FILE", help="the configuration (default qo.toml, if there is one)")


async def _opened(given: argparse.Namespace, run: Run) -> int:
    configuration = read_configuration({"store": given.store}, path=given.config)
    making = any((given.command, action) in MAKE_STORES for action in (None, getattr(given, "action", None)))
    async with opened(given.command, configuration, given.token, making=making) as client:
        return await run(client, given)


@contextlib.asynccontextmanager
async def opened(
    command: str, configuration: Configuration, token: str | None, *, making: bool = False
) -> AsyncIterator[Client]:
    """A client of the configured store. Says which that is; and within a second, if it does not answer."""
    chosen = configuration.store
    say_store(command, chosen)
    remote = is_server(chosen.url)
    options: dict[str, Any] = (
        {"token": token_for(chosen, token)} if remote else {"encryption_key": chosen.encryption_key, "token": token}
    )
    with hint_at_token():
        async with contextlib.AsyncExitStack() as stack:
            async with saying_that_it_is_away(command, chosen):
                if not making and not remote and not await store_exists(chosen.url):
                    raise NotFound(
                        f"there is no store at {without_password(chosen.url)} ({chosen.where}) yet; the first push "
                        "makes it"
                    )
                client = await stack.enter_async_context(connect(chosen.url, patience=PATIENCE_SECONDS, **options))
                if remote:
                    await client.broker.inspect.ready()  # opening a client of a server asks that nothing
            yield client


@contextlib.contextmanager
def hint_at_token() -> Iterator[None]:
    """Whoever is not known to a server learns how a command says who it is."""
    try:
        yield
    except Unauthenticated as error:
        raise Unauthenticated(f"{error}; here: --token, or the variable {TOKEN_VARIABLE}") from None


def say_store(command: str, chosen: Chosen) -> None:
    """Which store a command works on, and why that one."""
    print(f"qo {command}: store {without_password(chosen.url)} ({chosen.where})", file=sys.stderr, flush=True)


@contextlib.asynccontextmanager
async def saying_that_it_is_away(command: str, chosen: Chosen) -> AsyncIterator[None]:
    async def say() -> None:
        await asyncio.sleep(QUIET_SECONDS)
        shown = without_password(chosen.url)
        print(f"qo {command}: {shown} does not answer yet; still trying (Ctrl-C ends it)", file=sys.stderr, flush=True)

    saying = asyncio.create_task(say())
    try:
        yield
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)


def add_command(
    commands: Any, name: str, help: str, run: Run, description: str | None = None
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=help, description=description or help)
    on_a_store(command, run)
    return command
