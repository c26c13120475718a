"""What a field of a request offers to choose from, found in the request's type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec.inspect as types

STEP = re.compile(r"\.([^.\[]+)|\[(?:\d+|\.\.\.)\]")
"""A step of a path as msgspec writes it: `.field`, or `[0]` and `[...]` for an item of a list or a mapping."""


def choices_at(kind: type, path: str) -> list[str]:
    """The values that the field at this path (`$.items[0].report`) takes; none, if it is not a choice."""
    found = [types.type_info(kind)]
    for step in STEP.finditer(path):
        found = [inner for outer in _members(found) for inner in _inside(outer, step[1])]
    return [str(value) for each in _members(found) for value in _values(each)]


def _members(found: Sequence[types.Type]) -> Iterator[types.Type]:
    """Types, those of a union one by one."""
    for each in found:
        if isinstance(each, types.UnionType):
            yield from _members(each.types)
        else:
            yield each


def _inside(outer: types.Type, field: str | None) -> list[types.Type]:
    """What stands in a type under the name of a field, or, without a name, as an item."""
    if field is None:
        item = getattr(outer, "item_type", None) or getattr(outer, "value_type", None)
        return [] if item is None else [item]
    if not isinstance(outer, types.StructType):
        return []
    if field == outer.tag_field:
        return [types.LiteralType((outer.tag,))]
    return [each.type for each in outer.fields if each.encode_name == field]


def _values(each: types.Type) -> Sequence[Any]:
    match each:
        case types.EnumType():
            return [member.value for member in each.cls]
        case types.LiteralType():
            return each.values
        case _:
            return ()
