"""Times that users give."""

from __future__ import annotations

from datetime import UTC, datetime

from qo.core.errors import Invalid

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""What every store can say, with room for durations to be added."""


def checked_time(field: str, value: datetime) -> datetime:
    """A time with a zone, within what every store can say."""
    if not isinstance(value, datetime):
        raise Invalid(field, f"must be a datetime, not {type(value).__name__}")
    if value.tzinfo is None:
        raise Invalid(field, "must have a time zone")
    if not EARLIEST <= value <= LATEST:
        raise Invalid(field, f"must be from {EARLIEST.year} to {LATEST.year}")
    return value
