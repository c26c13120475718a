"""Sealing: payloads that are encrypted before they are stored, with AES-256-GCM.

A sealed message says so in a header that names its key. The queue's name is bound
into the seal, so that a payload cannot be moved to another queue. The same
message under the same id is sealed alike, so that a push that is made again meets
itself. A key is the operator's, who keeps it; else one is made and kept in the
store, where it guards against whoever sees messages but not the keys.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from qo.core.errors import Incompatible, Invalid
from qo.core.message import SEALED, NewMessage

KEY_BYTES = 32
NONCE_BYTES = 12


class SealingKey(NamedTuple):
    """A key and the name that messages know it by."""

    id: str
    value: bytes


class UnknownKey(Incompatible):
    """A payload is sealed with a key that this process has not got."""

    def __init__(self, id: str) -> None:
        super().__init__(f"a payload is sealed with key {id}, which is not here; give it as encryption.key")


def new_key() -> SealingKey:
    return key_of(secrets.token_bytes(KEY_BYTES))


def key_of(value: bytes) -> SealingKey:
    return SealingKey(hashlib.sha256(b"qo key id" + value).hexdigest()[:16], value)


def read_key(text: str) -> SealingKey | None:
    """The operator's key, as a setting says it; none, if it is empty."""
    if not text:
        return None
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != KEY_BYTES:
        raise Invalid("encryption.key", f"must be {2 * KEY_BYTES} hexadecimal digits (`openssl rand -hex {KEY_BYTES}`)")
    return key_of(value)


def sealed(message: NewMessage, key: SealingKey) -> NewMessage:
    """The message with its payload sealed; one that is sealed already as it is."""
    if message.headers is not None and SEALED in message.headers:
        return message
    cipher, nonces = _derived(key.value)
    nonce = hmac.digest(nonces, message.id + message.payload, "sha256")[:NONCE_BYTES]
    payload = nonce + cipher.encrypt(nonce, message.payload, message.queue.encode())
    return msgspec.structs.replace(message, payload=payload, headers={**(message.headers or {}), SEALED: key.id})


def opened(
    find: Callable[[str], bytes], queue: str, payload: bytes, headers: Mapping[str, str]
) -> tuple[bytes, Mapping[str, str]]:
    """The payload as it was pushed, and the headers without the seal. `find` gives a key by its id, or raises."""
    id = headers.get(SEALED)
    if id is None:
        return payload, headers
    cipher, _ = _derived(find(id))
    plain: bytes = cipher.decrypt(payload[:NONCE_BYTES], payload[NONCE_BYTES:], queue.encode())
    return plain, {name: value for name, value in headers.items() if name != SEALED}


@lru_cache(maxsize=16)
def _derived(key: bytes) -> tuple[Any, bytes]:
    """The cipher, and the key that nonces are drawn with: one key is not used for two purposes."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only when asked for
    except ImportError:
        raise Incompatible("sealed payloads need a cipher; install it: pip install 'qo-queue[crypto]'") from None
    return AESGCM(hmac.digest(key, b"qo seal", "sha256")), hmac.digest(key, b"qo nonce", "sha256")
