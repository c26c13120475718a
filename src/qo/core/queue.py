"""A queue's settings: defaults written once, validated on construction."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from qo.core.durations import duration
from qo.core.errors import Invalid, not_one_of
from qo.core.names import checked_name, namespace_and_task, suggestion
from qo.core.retry import RetryPolicy

ZERO = timedelta(0)
PRIORITY_LIMIT = 2**31 - 1
"""What consumers noted about messages is removed after so long."""
WINDOW_FULL = 100
"""A keyed lane with so many messages waiting is not held back by its queue's window any longer."""
DEFAULT_LEASE = timedelta(seconds=30)


class History(StrEnum):
    """What is kept of a finished message of the default group."""

    NONE = "none"
    OUTCOME = "outcome"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Everything that can be set on a queue.

    lease        how long a claim holds what it took, unless the claim says otherwise
    retry        how often and how soon a failed message is tried again
    max_lost     leases a message may lose before it is buried; 0: no limit, else at least 3
    max_payload  bytes of one payload
    ttl          default time to live of a message, from its due time; None: for ever
    history      none, outcome, or full (an event for each change of state)
    retain       how long a message is kept after every group has settled it
    group_idle   a group that has not claimed for so long does not hold messages back
    max_age      remove messages older than this, settled or not; None: no such rule
    max_length   keep at most so many messages in a lane, settled or not; None: no such rule
    default_group  False: the default group does not hold messages back, until it claims
    priority     of this queue among those that one claim takes from, before the messages' own; higher first
    max_size     a push beyond so many unsettled messages is refused as a whole; None: no limit
    delay        a message that says no time is due so long after its push
    window       a keyed lane is held back so long after its first message, or until 100 wait; then they come together
    dead_letters  False: a message that used up its attempts, or was lost too often, is dropped instead of buried
    encrypt      payloads are sealed (AES-256-GCM) before they are stored
    sealed_since  when `encrypt` was switched on, written by qo; what was pushed since and is not sealed is refused
    dedupe_window  how long a dedupe key holds whose push leaves that to the queue; 0: not at all
    namespace, task  by which filters choose queues; None: what the dotted name says
    notes        anything, kept for whoever set it
    """

    lease: timedelta = DEFAULT_LEASE
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    max_lost: int = 5
    max_payload: int = 1024 * 1024
    ttl: timedelta | None = None
    history: History = History.OUTCOME
    retain: timedelta = timedelta(days=1)
    group_idle: timedelta = timedelta(days=30)
    max_age: timedelta | None = None
    max_length: int | None = None
    default_group: bool = True
    priority: int = 0
    max_size: int | None = None
    delay: timedelta = ZERO
    window: timedelta = ZERO
    dead_letters: bool = True
    encrypt: bool = False
    sealed_since: datetime | None = None
    dedupe_window: timedelta = timedelta(hours=1)
    namespace: str | None = None
    task: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in LENGTHS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                object.__setattr__(self, name, duration(name, value))
        checks = (
            ("lease", self.lease > ZERO, "must be greater than 0"),
            ("max_lost", self.max_lost == 0 or self.max_lost >= 3, "must be 0 (no limit) or at least 3"),
            ("max_payload", self.max_payload >= 1, "must be at least 1 byte"),
            ("ttl", self.ttl is None or self.ttl > ZERO, "must be greater than 0, or null for no limit"),
            ("retain", self.retain >= ZERO, "must not be negative"),
            ("group_idle", self.group_idle > ZERO, "must be greater than 0"),
            ("max_age", self.max_age is None or self.max_age > ZERO, "must be greater than 0, or null for no rule"),
            ("max_length", self.max_length is None or self.max_length >= 1, "must be at least 1, or null for no rule"),
            ("priority", abs(self.priority) <= PRIORITY_LIMIT, f"must be from -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}"),
            ("max_size", self.max_size is None or self.max_size >= 1, "must be at least 1, or null for no limit"),
            ("delay", self.delay >= ZERO, "must not be negative"),
            ("window", self.window >= ZERO, "must not be negative"),
            ("dedupe_window", self.dedupe_window >= ZERO, "must not be negative"),
        )
        for name, good, problem in checks:
            if not good:
                raise Invalid(name, problem)
        for name in ("namespace", "task"):
            if getattr(self, name):
                checked_name(name, getattr(self, name))

    def names(self, queue: str) -> tuple[str, str]:
        """The namespace and task of a queue with these settings."""
        namespace, task = namespace_and_task(queue)
        return (
            namespace if self.namespace is None else self.namespace,
            task if self.task is None else self.task,
        )

    def changed(self, changes: Mapping[str, Any]) -> QueueSettings:
        """These settings with some replaced; unknown names and wrong types are refused."""
        changed: QueueSettings = _changed(self, changes, "")
        return changed

    def configured(self, changes: Mapping[str, Any], now: datetime) -> QueueSettings:
        """These settings as a user changes them, at that time."""
        if "sealed_since" in changes:
            raise Invalid("sealed_since", "is written by qo, when `encrypt` is switched on")
        return self.changed(changes).sealed_from(now)

    def sealed_from(self, now: datetime) -> QueueSettings:
        """These settings with `sealed_since` set while `encrypt` is on, and None while it is off."""
        if self.encrypt == (self.sealed_since is not None):
            return self
        return replace(self, sealed_since=now if self.encrypt else None)

    def overrides(self) -> dict[str, Any]:
        """What differs from the defaults, as plain JSON values. `changed` reads it back."""
        return _overrides(self, QueueSettings())


LENGTHS = [each.name for each in fields(QueueSettings) if "timedelta" in str(each.type)]


def _changed(settings: Any, changes: Mapping[str, Any], prefix: str) -> Any:
    known = typing.get_type_hints(type(settings))
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise Invalid(prefix + unknown[0], "is not a queue setting" + suggestion(unknown[0], known))
    values = {
        name: _read(prefix + name, known[name], value, getattr(settings, name)) for name, value in changes.items()
    }
    return replace(settings, **values)


def _overrides(settings: Any, defaults: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for each in fields(settings):
        value, default = getattr(settings, each.name), getattr(defaults, each.name)
        if value == default:
            continue
        if dataclasses.is_dataclass(value):
            plain[each.name] = _overrides(value, default)
        else:
            plain[each.name] = plain_value(value)
    return plain


def plain_value(value: Any) -> Any:
    """A setting's value as JSON says it: lengths in seconds, times as text."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value.isoformat() if isinstance(value, datetime) else value


def _read(name: str, wanted: Any, value: Any, current: Any) -> Any:
    """Turn a plain value into the type that a setting has."""
    if isinstance(wanted, types.UnionType):
        if value is None:
            return None
        [wanted] = [each for each in typing.get_args(wanted) if each is not type(None)]
    if wanted is RetryPolicy:
        return _read_retry(name, value, current)
    if wanted is History:
        return _read_history(name, value)
    if wanted is timedelta:
        return duration(name, value)
    if wanted is datetime:
        return value if isinstance(value, datetime) else datetime.fromisoformat(value)
    if wanted is float and type(value) is int:
        return float(value)
    if wanted == Mapping[str, Any]:
        return _read_notes(name, value)
    if type(value) is not wanted:
        raise Invalid(name, f"must be of type {wanted.__name__}, not {type(value).__name__}")
    return value


def _read_retry(name: str, value: Any, current: Any) -> Any:
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, Mapping):
        return _changed(current, value, "retry.")
    raise Invalid(name, "must be a RetryPolicy or a mapping of its fields")


def _read_notes(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
        raise Invalid(name, "must be a mapping of names to JSON values")
    return dict(value)


def _read_history(name: str, value: Any) -> History:
    try:
        return History(value)
    except ValueError:
        raise not_one_of(name, value, History) from None
