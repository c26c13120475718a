"""Records: small values that are not messages. Tokens, schedules and the like are records of a kind.

A change names the version that it is about, so two processes that read the same
record cannot both change it. A record that is made anew never has a version that
an earlier one of its name had: versions begin at the store's time in microseconds.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from qo.core.errors import Invalid, TooLarge
from qo.core.names import checked_key, checked_name

BODY_LIMIT = 256 * 1024
"""Bytes of one record."""
LIST_LIMIT = 1000
"""Records that one read answers."""
CHANGES_LIMIT = 1000
"""Records that one unit changes."""
ABSENT = 0
"""The version of a record that does not exist."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value kept under a name. `due_at` is when somebody must look at it; None: nobody needs to."""

    kind: str
    name: str
    version: int
    due_at: datetime | None = None
    body: bytes


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """Write a record. `expected` is the version it must have (`ABSENT`: it must not exist); None: whatever it is."""

    kind: str
    name: str
    body: bytes
    due_at: datetime | None = None
    expected: int | None = None

    def __post_init__(self) -> None:
        checked_name("kind", self.kind)
        checked_key("name", self.name)
        if len(self.body) > BODY_LIMIT:
            raise TooLarge("body", f"must have at most {BODY_LIMIT} bytes, not {len(self.body)}")


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a record, if there is one. `expected` is the version it must have; None: whatever it is."""

    kind: str
    name: str
    expected: int | None = None


RecordChange = Put | Delete


class Due(msgspec.Struct, frozen=True):
    """Records that are due, longest first, and when the next one will be; None: never."""

    records: tuple[Record, ...]
    next_at: datetime | None


def version_of(change: RecordChange, found: int, now_micros: int) -> int | None:
    """The version that a change writes, or removes (`ABSENT`: there was none); None: it is not as expected."""
    if change.expected is not None and change.expected != found:
        return None
    if isinstance(change, Delete):
        return found
    return now_micros if found == ABSENT else found + 1


def why_not(change: RecordChange, found: int) -> str:
    """Why a change that expected another version failed, as text."""
    record = f"{change.kind} '{change.name}'"
    if found == ABSENT:
        return f"{record} does not exist"
    return f"{record} exists already" if change.expected == ABSENT else f"{record} has changed meanwhile"


def checked_limit(limit: int) -> int:
    if type(limit) is not int or not 1 <= limit <= LIST_LIMIT:
        raise Invalid("limit", f"must be a whole number from 1 to {LIST_LIMIT}, not {limit!r}")
    return limit
