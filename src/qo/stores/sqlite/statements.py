"""SQL lives in files named for its verb; each statement has a name and says which index serves it.

Two phrases say where a lane's messages lie (see `places`): `row_at(lane, offset)`
is a message's row, and `FROM messages_from(lane, offset)` reads messages `m` from
an offset on, through the lane's stretches `s`; more conditions follow with AND. A third,
`cursor_of(c, l)`, is the columns of a cursor and its lane (see `cursors`).
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

_NAMED = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)

_ROW_AT = re.compile(r"row_at\(([^,()]+), ([^,()]+)\)")
_ROW = """(SELECT row + {offset} - first FROM stretches
    WHERE lane_id = {lane} AND first <= {offset} ORDER BY first DESC LIMIT 1)"""

_MESSAGES_FROM = re.compile(r"messages_from\(([^,()]+), ([^,()]+)\)")
_MESSAGES = """spans s CROSS JOIN messages m
    ON m.row >= s.row + max({offset} - s.first, 0) AND m.row < s.row + s.last - s.first
WHERE s.lane_id = {lane}
    AND s.first >= coalesce((SELECT max(first) FROM stretches WHERE lane_id = {lane} AND first <= {offset}), 0)"""

_encoder = msgspec.json.Encoder()


def as_json(values: object) -> str:
    """As a statement takes a list of values."""
    return _encoder.encode(values).decode()


CURSOR_OF = "cursor_of(c, l)"
_CURSOR = (
    "c.id, c.group_id, c.state, c.position, c.attempts, c.losses, c.due_at, c.hold, "
    "l.id, l.key, l.kind, l.priority, l.first, l.tail, l.entered_at"
)
CURSOR_WIDTH = _CURSOR.count(",") + 1


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
    bodies = (_spelled_out(_COMMENT.sub("", body).strip().rstrip(";")) for body in parts[1::2])
    return Statements(f"{verb}.sql", dict(zip(parts[::2], bodies, strict=True)))


def _spelled_out(sql: str) -> str:
    sql = sql.replace(CURSOR_OF, _CURSOR)
    sql = _ROW_AT.sub(lambda found: _ROW.format(lane=found[1], offset=found[2]), sql)
    return _MESSAGES_FROM.sub(lambda found: _MESSAGES.format(lane=found[1], offset=found[2]), sql)
