"""A queue's options as Queen has them, and our settings, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from qo.core.errors import Invalid
from qo.core.queue import QueueSettings
from qo.core.retry import RetryPolicy

MEBIBYTE = 1024 * 1024
LARGEST = 2**31 - 2
PUSHED_LEASE_SECONDS = 60
"""The lease of a queue that a push created; one that is configured has `leaseTime`."""

DEFAULTS: dict[str, int | bool] = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "priority": 0,
    "maxSize": 0,
    "ttl": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "maxWaitTimeSeconds": 0,
    "encryptionEnabled": False,
    "dedupWindowSeconds": 3600,
}
"""Every option, and what it is if nobody says."""

Options = dict[str, Any]


def merged(given: Mapping[str, Any], known: QueueSettings | None, *, replace: bool) -> Options:
    """All options after a configure: absent keeps, null resets; unknown ones are nobody's concern."""
    base: Options = dict(DEFAULTS) if known is None or replace else options_of(known)
    for name, value in given.items():
        if name in DEFAULTS:
            base[name] = DEFAULTS[name] if value is None else _checked(name, value)
    return base


def _checked(name: str, value: Any) -> int | float | bool:
    wanted = type(DEFAULTS[name])
    if wanted is bool:
        if not isinstance(value, bool):
            raise Invalid(f"options.{name}", f"must be true or false, not {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"options.{name}", f"must be a number, not {value!r}")
    if not abs(value) <= LARGEST:  # nor is it a NaN
        raise Invalid(f"options.{name}", f"must be at most {LARGEST}, not {value!r}")
    if name != "priority" and value < 0:
        raise Invalid(f"options.{name}", f"must not be negative, not {value!r}")
    return value


def settings_of(options: Options) -> dict[str, Any]:
    """Our settings for these options. What they say beyond that is kept with them, for the echo."""
    lives = [options[name] for name in ("ttl", "maxWaitTimeSeconds") if options[name] > 0]
    kept = options["retentionEnabled"]
    return {
        "lease": options["leaseTime"] or DEFAULTS["leaseTime"],
        "retry": RetryPolicy(
            attempts=int(options["retryLimit"]) + 1,
            delay=timedelta(milliseconds=options["retryDelay"]),
            max_delay=timedelta(milliseconds=options["retryDelay"]),
            multiplier=1.0,
            jitter=0.0,
        ),
        "priority": int(options["priority"]),
        "max_size": int(options["maxSize"]) or None,
        "max_payload": 64 * MEBIBYTE,
        "ttl": min(lives) if lives else None,
        "dead_letters": options["deadLetterQueue"] or options["dlqAfterMaxRetries"],
        "delay": options["delayedProcessing"],
        "window": options["windowBuffer"],
        "max_age": options["retentionSeconds"] or None if kept else None,
        "retain": (options["completedRetentionSeconds"] if kept else 0) or QueueSettings().retain,
        "encrypt": options["encryptionEnabled"],
        "dedupe_window": options["dedupWindowSeconds"],
        "notes": {"queen": {name: options[name] for name in _KEPT}},
    }


_KEPT = (
    "ttl", "maxWaitTimeSeconds", "deadLetterQueue", "dlqAfterMaxRetries", "retentionEnabled", "retentionSeconds",
    "completedRetentionSeconds",
)  # fmt: skip
"""Options that share a setting with another one, or say nothing by themselves."""
_SHARED = {
    "ttl": ("ttl", "maxWaitTimeSeconds"),
    "dead_letters": ("deadLetterQueue", "dlqAfterMaxRetries"),
    "max_age": ("retentionEnabled", "retentionSeconds"),
    "retain": ("completedRetentionSeconds",),
}


def options_of(settings: QueueSettings) -> Options:
    """The options of a queue, however it was set up."""
    notes = settings.notes.get("queen", {})
    told = {
        "leaseTime": _number(settings.lease),
        "retryLimit": settings.retry.attempts - 1,
        "retryDelay": _number(settings.retry.delay * 1000),
        "priority": settings.priority,
        "maxSize": settings.max_size or 0,
        "ttl": 0 if settings.ttl is None else _number(settings.ttl),
        "deadLetterQueue": settings.dead_letters,
        "dlqAfterMaxRetries": settings.dead_letters,
        "delayedProcessing": _number(settings.delay),
        "windowBuffer": _number(settings.window),
        "retentionEnabled": settings.max_age is not None,
        "retentionSeconds": 0 if settings.max_age is None else _number(settings.max_age),
        "encryptionEnabled": settings.encrypt,
        "dedupWindowSeconds": _number(settings.dedupe_window),
    }
    known: Options = {**DEFAULTS, **told}
    if not isinstance(notes, Mapping):
        return known
    # What was noted counts as long as it says what is so: our own API may have changed the setting since.
    noted = {**known, **{name: notes[name] for name in _KEPT if name in notes}}
    derived = QueueSettings().changed(settings_of(noted))
    for setting, names in _SHARED.items():
        if getattr(derived, setting) != getattr(settings, setting):
            noted |= {name: known[name] for name in names}
    return noted


def changes_of(options: Options, known: QueueSettings | None) -> dict[str, Any]:
    """What a configure changes: all of it where the queue is new, else what differs from before."""
    after = settings_of(options)
    if known is None:
        return after
    before = settings_of(options_of(known))
    changed = {name: value for name, value in after.items() if value != before[name]}
    return {**changed, "notes": {**known.notes, **after["notes"]}}


def _number(length: timedelta) -> int | float:
    seconds = length.total_seconds()
    return int(seconds) if seconds == int(seconds) else seconds


def _new(lease_seconds: int, *, default_group: bool) -> QueueSettings:
    settings = QueueSettings().changed(settings_of({**DEFAULTS, "leaseTime": lease_seconds}))
    return settings.changed({"default_group": default_group, "notes": {}})


PUSHED = _new(PUSHED_LEASE_SECONDS, default_group=True)
"""How a queue is set up that a push created."""
POPPED = _new(PUSHED_LEASE_SECONDS, default_group=False)
"""How one is set up that a named group's pop created: nobody may ever pop it without a group."""
