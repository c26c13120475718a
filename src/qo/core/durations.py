"""Durations: one rule for every length of time that a user gives.

A duration is a number of seconds, a `timedelta`, or text: `"90"`, `"1.5s"`, `"250ms"`, `"1h30m"`, `"2d"`.
"""

from __future__ import annotations

import re
from datetime import timedelta

from qo.core.errors import Invalid

LONGEST = timedelta(days=36500)
Length = timedelta | float | str
"""What a duration may be given as."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_SECONDS = re.compile(rf"[+-]?(?:{_NUMBER})(?:[eE][+-]?\d+)?")
_PART = re.compile(rf"({_NUMBER})\s*(ms|w|d|h|m|s)\s*")
_PARTS = re.compile(rf"(?:(?:{_NUMBER})\s*(?:ms|w|d|h|m|s)\s*)+")
TEXT_LIMIT = 64
ALLOWED = "a timedelta, seconds as a number, or text such as '90', '1.5s', '250ms', '1h30m' or '2d'"


def duration(field_name: str, value: Length) -> timedelta:
    """Read a duration; what is wrong with it is said by the field's name."""
    if isinstance(value, bool) or not isinstance(value, timedelta | int | float | str):
        raise Invalid(field_name, f"must be {ALLOWED}, not {type(value).__name__}")
    if isinstance(value, str):
        value = _read(field_name, value)
    try:
        length = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise Invalid(field_name, f"must be a finite number of seconds, not {value}") from None
    if abs(length) > LONGEST:
        raise Invalid(field_name, f"must be at most {LONGEST.days} days")
    return length


def seconds_of(field_name: str, value: Length) -> float:
    """The same in seconds."""
    return value if type(value) is float else duration(field_name, value).total_seconds()


def milliseconds(field_name: str, value: Length) -> timedelta:
    """Read a duration whose field says that a number is milliseconds."""
    in_seconds = value / 1000 if isinstance(value, int | float) and not isinstance(value, bool) else value
    return duration(field_name, in_seconds)


def _read(field_name: str, text: str) -> float:
    said = text.strip()
    if len(said) > TEXT_LIMIT:
        raise Invalid(field_name, f"must be {ALLOWED}, not a text of {len(text)} characters")
    if _SECONDS.fullmatch(said):
        return float(said)
    if _PARTS.fullmatch(said):
        return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(said))
    raise Invalid(field_name, f"must be {ALLOWED}, not '{text}'")


def duration_text(length: timedelta) -> str:
    """A duration as a person reads it: `1 h 30 min`, `1.5 s`, `20 ms`."""
    seconds = length.total_seconds()
    if abs(seconds) < 1:
        return f"{seconds * 1000:.0f} ms" if seconds else "0 s"
    if abs(seconds) < 60:
        return f"{seconds:.3g} s"
    whole, parts = round(seconds), []
    for name, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])
