"""Times as SQLite keeps them: microseconds since 1970, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def span(length: timedelta) -> int:
    return length // _MICROSECOND


@lru_cache(maxsize=1024)
def moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def maybe_moment(micros: int | None) -> datetime | None:
    return None if micros is None else moment(micros)
