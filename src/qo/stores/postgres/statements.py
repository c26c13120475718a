"""The statements that call the functions and read for people, for one schema, by name."""

from __future__ import annotations

import re
from importlib.resources import files

from qo.stores.postgres.schema import in_schema

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)


class Statements:
    """The statements of `sql/calls.sql`, by attribute."""

    def __init__(self, schema: str) -> None:
        text = (files(__package__) / "sql" / "calls.sql").read_text()
        _, *parts = _NAMED.split(text)
        bodies = (in_schema(_COMMENT.sub("", body).strip().rstrip(";"), schema) for body in parts[1::2])
        self.texts = dict(zip(parts[::2], bodies, strict=True))

    def __getattr__(self, name: str) -> str:
        try:
            return self.texts[name]
        except KeyError:
            raise AttributeError(f"calls.sql has no statement named {name}") from None
