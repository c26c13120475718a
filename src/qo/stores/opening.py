"""URL -> engine. The one place that names engines; each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qo.core.errors import Invalid
from qo.core.names import suggestion
from qo.stores.store import Engine

DEFAULT_URL = "sqlite:///qo.db"
SCHEMES = ("sqlite",)


async def open_engine(url: str, *, clock: Callable[[], datetime] | None = None) -> Engine:
    """Open the store that a URL names."""
    scheme = urlsplit(url).scheme
    options: dict[str, Any] = {} if clock is None else {"clock": clock}
    match scheme:
        case "sqlite":
            return await _open_sqlite(url, options)
        case _:
            known = ", ".join(f"{each}://" for each in SCHEMES)
            raise Invalid("url", f"must begin with {known}; '{url}' does not" + suggestion(scheme, SCHEMES))


def store_exists(url: str) -> bool:
    """Whether there is something to open; a store that is not a file is taken to be there."""
    if urlsplit(url).scheme != "sqlite":
        return True
    from qo.stores.sqlite.engine import MEMORY, options_of  # noqa: PLC0415 - only when asked for

    path, _ = options_of(url)
    return path == MEMORY or Path(path).exists()


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
        raise Invalid("url", f"synchronous must be one of {', '.join(SYNCHRONOUS)}, not '{synchronous}'")
    return await SqliteEngine.open(path, synchronous=synchronous, **options)
