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


@cache
def statements(verb: str) -> Statements:
    """Read `sql/<verb>.sql`."""
    text = (files(__package__) / "sql" / f"{verb}.sql").read_text()
    _, *parts = _NAMED.split(text)
    bodies = (_COMMENT.sub("", body).strip().rstrip(";") for body in parts[1::2])
    return Statements(f"{verb}.sql", dict(zip(parts[::2], bodies, strict=True)))
