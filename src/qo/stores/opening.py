"""URL -> engine. The one place that names engines; each is imported only when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qo.core.capabilities import Capabilities
from qo.core.errors import Invalid, not_one_of
from qo.core.names import suggestion
from qo.core.verbs import Engine
from qo.environment import DEFAULT_URL
from qo.stores.sealing import read_key

SECRET_OPTION = re.compile(r"\b(password|sslpassword)=[^&]*")
SCHEMES = ("sqlite", "postgresql", "http", "https")
"""What a URL may begin with; those of a server are `connect`'s to open."""


async def open_engine(url: str, *, clock: Callable[[], datetime] | None = None, encryption_key: str = "") -> Engine:
    """Open the store that a URL names. The key is for queues whose payloads are sealed; without, the store's own."""
    scheme = urlsplit(url).scheme
    options: dict[str, Any] = {"key": read_key(encryption_key)}
    if clock is not None:
        options["clock"] = clock
    match scheme:
        case "sqlite":
            return await _open_sqlite(url, options)
        case "postgresql" | "postgres":
            return await _open_postgres(url, options)
        case "http" | "https":
            raise Invalid("store", "names a server; what is wanted here is a store: sqlite:///… or postgresql://…")
        case _:
            known = ", ".join(f"{each}://" for each in SCHEMES)
            raise Invalid(
                "url", f"must begin with {known}; '{without_password(url)}' does not" + suggestion(scheme, SCHEMES)
            )


def without_password(url: str) -> str:
    """A URL as it may be shown; several, with commas between them, each."""
    if url.startswith(("http://", "https://")) and "," in url:
        return ",".join(map(without_password, url.split(",")))
    parts = urlsplit(url)
    if parts.password is not None:
        user = f"{parts.username or ''}:***@"
        parts = parts._replace(netloc=user + parts.netloc.rpartition("@")[2])
    shown = SECRET_OPTION.sub(r"\1=***", parts.query)
    return parts._replace(query=shown).geturl() if shown != parts.query or parts.password is not None else url


async def store_exists(url: str) -> bool:
    """Whether there is something to open. Creates nothing."""
    if _is_postgres(url):
        return await _schema_exists(url)
    if urlsplit(url).scheme != "sqlite":
        return True
    from qo.stores.sqlite.ears import MEMORY  # noqa: PLC0415 - only when asked for
    from qo.stores.sqlite.engine import options_of  # noqa: PLC0415

    path, _ = options_of(url)
    return path == MEMORY or await asyncio.to_thread(Path(path).exists)


async def _open_sqlite(url: str, options: dict[str, Any]) -> Engine:
    from qo.stores.sqlite.engine import SYNCHRONOUS, SqliteEngine, options_of  # noqa: PLC0415 - only when asked for

    path, given = options_of(url)
    if not path or path == ".":
        raise Invalid("url", f"names no file; write {DEFAULT_URL} or sqlite:////absolute/path.db")
    unknown = [name for name in given if name != "synchronous"]
    if unknown:
        raise Invalid("url", f"has an unknown option '{unknown[0]}'" + suggestion(unknown[0], ["synchronous"]))
    synchronous = given.get("synchronous", SYNCHRONOUS[0])
    if synchronous not in SYNCHRONOUS:
        raise not_one_of("url", synchronous, SYNCHRONOUS, "synchronous ")
    return await SqliteEngine.open(path, synchronous=synchronous, **options)


async def _open_postgres(url: str, options: dict[str, Any]) -> Engine:
    with _driver_named():
        from qo.stores.postgres.address import read_address  # noqa: PLC0415 - only when asked for
        from qo.stores.postgres.engine import PostgresEngine  # noqa: PLC0415
    return await PostgresEngine.open(read_address(url), **options)


def capabilities_of(url: str) -> Capabilities:
    """What the engine of a URL can do, without opening the store."""
    if _is_postgres(url):
        with _driver_named():
            from qo.stores.postgres.engine import PostgresEngine  # noqa: PLC0415 - only when asked for
        return PostgresEngine.capabilities
    from qo.stores.sqlite.engine import SqliteEngine  # noqa: PLC0415 - only when asked for

    return SqliteEngine.capabilities


async def migrate(url: str, *, dry_run: bool = False) -> list[str]:
    """Bring a store's schema forward; the names of the migrations that were, or would be, applied."""
    if not capabilities_of(url).migrates:
        raise Invalid("url", "names no PostgreSQL database; a SQLite file is migrated when it is opened")
    with _driver_named():
        from qo.stores.postgres.address import read_address  # noqa: PLC0415 - only when asked for
        from qo.stores.postgres.migrating import migrate  # noqa: PLC0415
    return await migrate(read_address(url), dry_run=dry_run)


async def _schema_exists(url: str) -> bool:
    with _driver_named():
        from qo.stores.postgres.address import read_address  # noqa: PLC0415 - only when asked for
        from qo.stores.postgres.migrating import version_of  # noqa: PLC0415
    return await version_of(read_address(url)) > 0


def _is_postgres(url: str) -> bool:
    return urlsplit(url).scheme in ("postgresql", "postgres")


@contextlib.contextmanager
def _driver_named() -> Iterator[None]:
    """Say what to install if the driver is missing."""
    try:
        yield
    except ImportError as error:
        if error.name != "asyncpg":
            raise
        raise Invalid("url", "needs PostgreSQL's driver; install it with: pip install 'qo-queue[postgres]'") from None
