"""SQL lives in files named for its verb; each statement has a name and says which index serves it."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


class Statements:
    """The statements of one file, by attribute."""

    def __init__(self, file: str, texts: dict[str, str]) -> None:
        self._file = file
        self.texts = texts

    def __getattr__(self, name: str) -> str:
        try:
            return self.texts[name]
        except KeyError:
            raise AttributeError(f"{self._file} has no statement named {name}") from None


def wide(sql: str, shared: int, rows: int) -> str:
    """A statement of one row made into one of many, which takes half the time per row.

    Its VALUES row is repeated. Parameters up to `shared` stay common to all
    rows, those above are counted on, and `+ 0` counts up row by row.
    """
    head, _, row = sql.partition(" VALUES ")
    own = len(set(re.findall(r"\?(\d+)", row))) - shared

    def numbered(row_number: int) -> str:
        def renumbered(found: re.Match[str]) -> str:
            parameter = int(found[1])
            return f"?{parameter if parameter <= shared else parameter + row_number * own}"

        return re.sub(r"\?(\d+)", renumbered, row).replace("+ 0", f"+ {row_number}")

    return f"{head} VALUES " + ", ".join(numbered(number) for number in range(rows))


@cache
def statements(verb: str) -> Statements:
    """Read `sql/<verb>.sql`."""
    text = (files(__package__) / "sql" / f"{verb}.sql").read_text()
    _, *parts = _NAMED.split(text)
    bodies = (_COMMENT.sub("", body).strip().rstrip(";") for body in parts[1::2])
    return Statements(f"{verb}.sql", dict(zip(parts[::2], bodies, strict=True)))
