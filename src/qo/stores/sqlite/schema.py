"""Opening a file: is it ours, which version is it, and bring it forward.

`application_id` says that a file is qo's, `user_version` which migration it has
seen. An empty file becomes ours; any other is refused and not touched.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

import apsw

from qo.core.errors import Incompatible

APPLICATION_ID = 0x716F3031  # "qo01"

_NUMBERED = re.compile(r"^(\d{4})_\w+\.sql$")


class Migration(NamedTuple):
    number: int
    name: str
    sql: str


def migrations() -> list[Migration]:
    """All migrations, in order."""
    folder = files(__package__) / "migrations"
    found = [(match, entry) for entry in folder.iterdir() if (match := _NUMBERED.match(entry.name))]
    return sorted(Migration(int(match[1]), entry.name, entry.read_text()) for match, entry in found)


def bring_forward(connection: apsw.Connection, path: str, known: list[Migration]) -> None:
    """Apply what is missing, in one transaction; refuse what is not ours or too new."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = _checked_version(connection, path, known[-1].number)
        for migration in known:
            if migration.number > version:
                connection.execute(migration.sql)
        if version < known[-1].number:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {known[-1].number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _checked_version(connection: apsw.Connection, path: str, newest: int) -> int:
    application: int = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
    if application != APPLICATION_ID and (tables or application or version):
        raise Incompatible(f"{path} is an SQLite file of another program; qo will not touch it")
    _check_newest(version, newest, path)
    return version


def check_version(version: int, path: str) -> None:
    """Refuse a file that a newer qo has brought forward while it was open here, or that is no longer what it was."""
    newest = migrations()[-1].number
    _check_newest(version, newest, path)
    if version < newest:
        raise Incompatible(f"{path} has schema {version}, and {newest} is needed")


def _check_newest(version: int, newest: int, path: str) -> None:
    if version > newest:
        raise Incompatible(
            f"{path} has schema {version}, made by a newer qo; this one knows up to {newest}. Upgrade qo to open it"
        )
