"""Names that users give: queues, groups, kinds, keys.

A name is text of bounded length without control characters. Slashes, dots and
spaces inside are allowed, because other systems' clients use them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from qo.core.errors import Invalid

NAME_LIMIT = 255
KEY_LIMIT = 512

DEFAULT_GROUP = "default"
DEFAULT_KIND = "default"
DEFAULT_QUEUE = "default"
DEFAULT_SCHEMA = "qo"
"""Where qo's tables are in a database, unless told otherwise."""


SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,39}")
KNOWN_LIMIT = 4096
known_names: set[str] = set()
"""Names that were found usable before, up to a limit: the hot path looks here first."""


def checked_name(field: str, value: str) -> str:
    """Return `value` if it is a usable name, else raise `Invalid` for `field`."""
    if value.__class__ is str and value in known_names:
        return value
    _check(field, value, NAME_LIMIT)
    if len(known_names) >= KNOWN_LIMIT:
        known_names.clear()
    known_names.add(value)
    return value


def checked_schema(field: str, value: str) -> str:
    """A database schema's name, which is put into statements as it is."""
    if not SCHEMA.fullmatch(value):
        raise Invalid(field, f"must be lower-case letters, digits and _, at most 40, not '{value}'")
    return value


def checked_key(field: str, value: str) -> str:
    """A key may be longer than a name: it is data, not an address."""
    _check(field, value, KEY_LIMIT)
    return value


def _check(field: str, value: str, limit: int) -> None:
    if not isinstance(value, str):
        raise Invalid(field, f"must be text, not {type(value).__name__}")
    if not value:
        raise Invalid(field, "must not be empty")
    if len(value) > limit:
        raise Invalid(field, f"must have at most {limit} characters, this one has {len(value)}")
    if value != value.strip():
        raise Invalid(field, "must not begin or end with white space")
    if not value.isprintable() and any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise Invalid(field, "must not contain control characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Invalid(field, "must be valid Unicode text (it contains a lone surrogate)") from None


def namespace_and_task(queue: str) -> tuple[str, str]:
    """Split a dotted queue name: `billing.invoices.send` is namespace `billing`, task `invoices.send`."""
    namespace, dot, task = queue.partition(".")
    return (namespace, task) if dot else ("", "")


SUGGESTION_LIMIT = 64
"""Characters of a word for which a near one is looked for: comparing takes long for long words."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """End an error message with the nearest known word, if one is near."""
    if len(word) > SUGGESTION_LIMIT:
        return ""
    words = list(known)
    longer = [each for each in words if word and (each.startswith(f"{word}_") or each.endswith(f".{word}"))]
    near = longer or difflib.get_close_matches(word, words, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
