"""The environment and qo.toml: the one place that reads them.

What the store is, if nobody says so in code, is decided here, for `qo.connect()`,
for workers and for commands alike: QO_STORE, else `store` in qo.toml (or in the
file that QO_CONFIG names), else a SQLite file in this folder.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from qo.core.errors import Invalid

FILE = "qo.toml"
PREFIX = "QO_"
CONFIG_VARIABLE = "QO_CONFIG"
STORE_VARIABLE = "QO_STORE"
KEY_VARIABLES = "QO_ENCRYPTION_KEY", "QUEEN_ENCRYPTION_KEY"
TOKEN_VARIABLE = "QO_TOKEN"  # noqa: S105 - its name
HOST_VARIABLE = "QO_TOKEN_HOST"
DEFAULT_URL = "sqlite:///qo.db"
DEFAULT = "default"
ARGUMENT = "argument"
"""Where a value came from: nobody said anything; or it was passed in code."""


def variables() -> Mapping[str, str]:
    return os.environ


class Chosen(NamedTuple):
    """A store or server, and where its URL came from."""

    url: str
    source: str
    found_file: bool = False
    """Whether the source is a file that was read because it lay there, and not because someone named it."""
    encryption_key: str = ""

    @property
    def where(self) -> str:
        """As it is told to people."""
        return "the default" if self.source == DEFAULT else f"from {self.source}"


def chosen_store(around: Mapping[str, str] | None = None) -> Chosen:
    """The store that the environment names, or qo.toml, or else the default."""
    around = variables() if around is None else around
    named_file = around.get(CONFIG_VARIABLE) or None
    document = read_document(named_file)
    file = named_file or FILE
    key = _encryption_key(document, around)
    if around.get(STORE_VARIABLE):
        return Chosen(around[STORE_VARIABLE], STORE_VARIABLE, encryption_key=key)
    if "store" not in document:
        return Chosen(DEFAULT_URL, DEFAULT, encryption_key=key)
    url = document["store"]
    if not isinstance(url, str) or not url:
        raise Invalid("store", f"in {file}: must be a URL as text, not {type(url).__name__}")
    return Chosen(url, file, found_file=named_file is None, encryption_key=key)


def _encryption_key(document: Mapping[str, Any], around: Mapping[str, str]) -> str:
    said = [around[name] for name in KEY_VARIABLES if around.get(name)]
    section = document.get("encryption", {})
    key = said[0] if said else section.get("key", "") if isinstance(section, Mapping) else ""
    if not isinstance(key, str):
        raise Invalid("encryption.key", f"must be text, not {type(key).__name__}")
    return key


def token_for(chosen: Chosen, given: str | None, around: Mapping[str, str] | None = None) -> str | None:
    """The token for a server: the one that is given, else the environment's.

    The environment's goes to a server that its owner named: with a flag or a variable, or in `QO_TOKEN_HOST`. A file
    that happens to lie in the folder cannot send it elsewhere.
    """
    around = variables() if around is None else around
    token = around.get(TOKEN_VARIABLE)
    if given or not token:
        return given
    hosts = [each.strip() for each in around.get(HOST_VARIABLE, "").split(",") if each.strip()]
    for url in servers_of(chosen.url):  # a call may go to any of them
        host = host_of(url)
        if hosts and not {host, urlsplit(url).hostname} & set(hosts):
            raise Invalid(HOST_VARIABLE, f"does not name {host}, so that {TOKEN_VARIABLE} is not sent there")
        if not hosts and chosen.found_file:
            raise Invalid(
                TOKEN_VARIABLE,
                f"is not sent to {host}, which only {chosen.source} in this folder names; say --store {chosen.url}, "
                f"--token, or {HOST_VARIABLE}={host}",
            )
    return token


def servers_of(url: str) -> list[str]:
    """The servers that a URL names: one, or several with commas between them."""
    return [each.strip() for each in url.split(",")]


def host_of(url: str) -> str:
    """With its port, as `QO_TOKEN_HOST` names it."""
    return urlsplit(url).netloc.rpartition("@")[2]


def read_document(named_file: str | None) -> dict[str, Any]:
    """What the configuration file says; nothing, if there is none and nobody named one."""
    file = Path(named_file or FILE)
    if not file.exists():
        if named_file is not None:
            raise Invalid("config", f"there is no file {named_file}")
        return {}
    try:
        return tomllib.loads(file.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid("config", f"{file} is not TOML: {error}") from None
    except OSError as error:
        raise Invalid("config", f"{file} cannot be read: {error.strerror}") from None
