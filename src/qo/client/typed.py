"""What can be said by name, for type checkers: a name that is mistyped is an error before anything is pushed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from qo.core.durations import Length
from qo.core.message import Dedupe
from qo.core.queue import History
from qo.core.retry import RetryPolicy


class PushOptions(TypedDict, total=False):
    """What can be said of a message beside its kind and payload; see `Message`."""

    key: str | None
    priority: int
    delay: Length | None
    due_at: datetime | None
    dedupe: str | Dedupe | None
    headers: Mapping[str, str] | None
    ttl: Length | None


class SettingsChanges(TypedDict, total=False):
    """What can be set on a queue; see `QueueSettings`."""

    lease: Length
    retry: RetryPolicy | Mapping[str, Any]
    max_lost: int
    max_payload: int
    ttl: Length | None
    history: History | str
    retain: Length
    group_idle: Length
    max_age: Length | None
    max_length: int | None
    default_group: bool
    priority: int
    max_size: int | None
    delay: Length
    window: Length
    dead_letters: bool
    encrypt: bool
    dedupe_window: Length
    namespace: str | None
    task: str | None
    notes: Mapping[str, Any]
