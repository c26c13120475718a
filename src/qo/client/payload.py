"""Python values to bytes and back. JSON unless the caller passes bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from qo.core.errors import Invalid
from qo.core.message import BYTES_CONTENT, CONTENT_TYPE

RAW = (bytes, bytearray, memoryview)


def _plain(value: Any) -> Any:
    """What JSON has no word for: models of pydantic say themselves what they are."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"objects of type {type(value).__name__} are not supported")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode
_decode = msgspec.json.Decoder().decode


def encoded(field: str, value: Any) -> bytes:
    """JSON bytes. What JSON cannot say is refused, not changed."""
    try:
        data: bytes = _encode(value)
    except (TypeError, ValueError, RecursionError, UnicodeEncodeError, OverflowError) as error:
        raise Invalid(field, f"cannot be written as JSON ({error}); pass bytes to send them as they are") from None
    if data.find(b"null") >= 0 and _hides_a_number(value):  # `in` takes twice as long
        raise Invalid(field, "contains NaN or infinity, which JSON cannot say")
    return data


def encoded_quickly(values: list[Any]) -> list[bytes] | None:
    """JSON bytes of many values, unless one of them needs a closer look: bytes, something JSON cannot say, a null."""
    if any(issubclass(kind, RAW) for kind in set(map(type, values))):
        return None
    try:
        data = list(map(_encode, values))
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None
    return None if any(each.find(b"null") >= 0 for each in data) else data


def _hides_a_number(value: Any) -> bool:
    """Whether a float that JSON has no word for would silently become null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_hides_a_number(each) for each in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return any(_hides_a_number(each) for each in value)
    return hasattr(value, "model_dump") and _hides_a_number(value.model_dump())


def marked(payload: Any, headers: Mapping[str, str] | None) -> tuple[bytes, Mapping[str, str]]:
    """Bytes pass as they are, and are marked as such unless the caller marked them."""
    return bytes(payload), {CONTENT_TYPE: BYTES_CONTENT, **(headers or {})}


def unpacked(payload: bytes, headers: Mapping[str, str]) -> Any:
    """The value that was pushed: decoded JSON, or bytes if it was pushed as bytes."""
    if "json" not in headers.get(CONTENT_TYPE, "json"):
        return payload
    try:
        return _decode(payload)
    except msgspec.DecodeError as error:
        raise Invalid("payload", f"is not JSON ({error}); read `body` for its bytes") from None


def result_bytes(result: Any) -> bytes | None:
    return None if result is None else encoded("result", result)


def result_value(result: bytes | None) -> Any:
    return None if result is None else _decode(result)
