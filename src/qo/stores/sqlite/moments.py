"""Times and ids as SQLite keeps them: microseconds since 1970 UTC, and 16 bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from qo.core.message import MessageId

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


def id_bytes(id: MessageId) -> bytes:
    return bytes.fromhex(id.replace("-", ""))


def id_text(raw: bytes) -> MessageId:
    text = raw.hex()
    return MessageId(f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
