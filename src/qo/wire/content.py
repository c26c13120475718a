"""Bytes on the wire: JSON as it is, anything else as base64."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from qo.core.errors import Invalid
from qo.core.message import CONTENT_TYPE

Json = msgspec.Raw | UnsetType
"""JSON that is neither parsed nor written again."""

_scan = msgspec.json.Decoder(msgspec.Raw).decode


def is_json(data: bytes) -> bool:
    """Whether these very bytes can stand in a JSON document. Scans them, without making objects of them."""
    try:
        if len(_scan(data)) != len(data):  # white space around it would be lost
            return False
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def packed(data: bytes, headers: Mapping[str, str] | None) -> tuple[Json, str | UnsetType]:
    """Bytes as the two fields that carry them: JSON, or base64."""
    if (not headers or "json" in headers.get(CONTENT_TYPE, "json")) and is_json(data):
        return msgspec.Raw(data), UNSET
    return UNSET, base64.b64encode(data).decode()


def packed_result(result: bytes | None) -> tuple[Json, str | UnsetType]:
    return (UNSET, UNSET) if result is None else packed(result, None)


def unpacked(field: str, plain: Json, encoded: str | UnsetType) -> bytes:
    """The bytes, from whichever of the two fields has them."""
    data = unpacked_result(field, plain, encoded)
    if data is None:
        raise Invalid(field, f"is required: any JSON, or {field}_base64 for other bytes")
    return data


def unpacked_result(field: str, plain: Json, encoded: str | UnsetType) -> bytes | None:
    if encoded is UNSET:
        return None if plain is UNSET else _text(field, bytes(plain))
    if plain is not UNSET:
        raise Invalid(field, f"give {field} or {field}_base64, not both")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"{field}_base64", "is not base64") from None


def _text(field: str, data: bytes) -> bytes:
    """JSON is UTF-8."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise Invalid(field, "is not valid UTF-8") from None
    return data
