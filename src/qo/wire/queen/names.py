"""Names that Queen's wire has and ours has not, both ways: partitions, groups, times."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

import msgspec

from qo.core.errors import Invalid
from qo.core.lane import Start, StartAt
from qo.core.names import DEFAULT_GROUP, checked_key, checked_name

DEFAULT_PARTITION = "Default"
QUEUE_MODE = "__QUEUE_MODE__"
NAMED_DEFAULT = "default (queen)"
"""A group that somebody calls `default`: it is not the default group, which has no name there."""


def partition_id(queue: str, partition: str) -> str:
    """A partition by its names, which stay as they are when its lane goes and comes again; safe in a path."""
    return base64.urlsafe_b64encode(msgspec.json.encode((queue, partition))).rstrip(b"=").decode()


def read_partition_id(text: str) -> tuple[str, str]:
    """The queue and the partition."""
    try:
        data = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
        queue, partition = msgspec.json.decode(data, type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise Invalid("partitionId", "is not one that a pop gave") from None
    return checked_name("partitionId", queue), checked_key("partitionId", partition)


def group_name(group: str | None) -> str:
    """Our name of a consumer group."""
    if not group or group == QUEUE_MODE:
        return DEFAULT_GROUP
    return NAMED_DEFAULT if group == DEFAULT_GROUP else checked_name("consumerGroup", group)


def shown_group(group: str) -> str:
    """Queen's name of a group."""
    if group == DEFAULT_GROUP:
        return QUEUE_MODE
    return DEFAULT_GROUP if group == NAMED_DEFAULT else group


def iso(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def read_time(field: str, text: str | None) -> datetime | None:
    """A time in ISO 8601; one without a zone is UTC."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise Invalid(field, f"must be a time in ISO 8601, not '{text}'") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def read_start(group: str, mode: str | None, start: str | None, now: datetime, default: str) -> Start:
    """Where a group starts that is new: by its time, else by its mode, else as the server's setting says."""
    if group == DEFAULT_GROUP:
        return Start()
    if start:
        if start == "now":
            return Start(StartAt.NEW)
        time = read_time("subscriptionFrom", start)
        return Start(StartAt.NEW) if time is None or time > now else Start(StartAt.TIME, time)
    return Start(StartAt.NEW if (mode or default) in ("new", "new-only") else StartAt.ALL)
