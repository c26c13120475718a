"""Sealing: payloads that are encrypted before they are stored, with AES-256-GCM.

A sealed message says so in a header, which names its key and the id that it was
sealed under. The queue, the lane's key and that id are bound into the seal, and the
nonce is drawn from them and the payload: no two different messages share a nonce, a
payload cannot be moved to another place, and the same message under the same id is
sealed alike, so that a push that is made again meets itself. A dead letter that is
retried has a new id and keeps its seal. A key is the operator's, who keeps it; else
one is made and kept in the store, where it guards against whoever sees messages but
not the keys.

Seals of the first form (the header is the key's id alone) bound only the queue in.
They are still opened, and never made.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from qo.core.errors import Incompatible, Invalid, shortened
from qo.core.message import SEALED, NewMessage

KEY_BYTES = 32
NONCE_BYTES = 12
KEY_ID_SHOWN = 40
WITHOUT_KEY = timedelta(seconds=30)
"""After so long a process looks again for messages that it had no key for."""


class SealingKey(NamedTuple):
    """A key and the name that messages know it by."""

    id: str
    value: bytes


class Unreadable(Incompatible):
    """A payload cannot be opened by anybody: it was changed or moved, or its key is not one of this store."""


class UnknownKey(Incompatible):
    """A payload is sealed with a key that is kept elsewhere: this process has not got it, another may."""

    def __init__(self, id: str) -> None:
        super().__init__(f"a payload is sealed with key {id}, which is not here; give it as encryption.key")


def no_such_key(id: str) -> Unreadable:
    return Unreadable(f"its payload is sealed with key {shortened(id, KEY_ID_SHOWN)}, which this store does not know")


class Stored(NamedTuple):
    """A message as it is stored, as far as a seal is concerned. No id: where that is not to be compared."""

    queue: str
    key: str | None
    id: bytes | None
    payload: bytes
    headers: Mapping[str, str]


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


FORM = "2"
"""What the header of a seal begins with; one of the first form has no mark."""


def sealed(message: NewMessage, key: SealingKey) -> NewMessage:
    """The message with its payload sealed; one that is sealed already as it is."""
    if message.headers is not None and SEALED in message.headers:
        return message
    cipher, nonces = _derived(key.value)
    place = _place(message.queue, message.key, message.id)
    nonce = hmac.digest(nonces, place + message.payload, "sha256")[:NONCE_BYTES]
    payload = nonce + cipher.encrypt(nonce, message.payload, place)
    mark = f"{FORM}:{key.id}:{message.id.hex()}"
    return msgspec.structs.replace(message, payload=payload, headers={**(message.headers or {}), SEALED: mark})


def _place(queue: str, key: str | None, id: bytes) -> bytes:
    """Where a message belongs, said so that no two places are said alike."""
    parts = [queue.encode(), b"" if key is None else b"=" + key.encode(), id]
    return b"qo seal 2" + b"".join(len(part).to_bytes(4) + part for part in parts)


def key_id(headers: Mapping[str, str]) -> str | None:
    """The key that a message says it is sealed with; None: it is not sealed."""
    mark = headers.get(SEALED)
    if mark is None:
        return None
    return mark.split(":")[1] if mark.startswith(f"{FORM}:") and mark.count(":") == 2 else mark


def opened(find: Callable[[str], bytes], stored: Stored, *, retried: bool = False) -> tuple[bytes, Mapping[str, str]]:
    """The payload as it was pushed, and the headers without the seal. `find` gives a key by its id, or raises.

    Raises `Unreadable`, or `UnknownKey` if it may be opened elsewhere. `retried`: it was a dead letter, and is sealed
    under the id that it had first.
    """
    id = key_id(stored.headers)
    if id is None:
        return stored.payload, stored.headers
    cipher, _ = _derived(find(id))
    mark = stored.headers[SEALED]
    bound = stored.queue.encode()
    if mark != id:
        sealed_under = _sealed_under(mark)
        if stored.id is not None and stored.id != sealed_under and not retried:
            raise Unreadable("its payload is another message's")
        bound = _place(stored.queue, stored.key, sealed_under)
    payload = stored.payload
    try:
        plain: bytes = cipher.decrypt(payload[:NONCE_BYTES], payload[NONCE_BYTES:], bound)
    except Exception as error:  # noqa: BLE001 - the cipher's own, of a library that may not be there
        raise Unreadable(f"its payload was changed or moved since it was sealed ({type(error).__name__})") from None
    return plain, {name: value for name, value in stored.headers.items() if name != SEALED}


def _sealed_under(mark: str) -> bytes:
    try:
        return bytes.fromhex(mark.rpartition(":")[2])
    except ValueError:
        raise Unreadable("its seal is not one of qo's") from None


def check_sealed(headers: Mapping[str, str], created_at: datetime, since: datetime | None) -> None:
    """Refuse what is not sealed in a queue whose payloads are, since then."""
    if since is not None and SEALED not in headers and created_at >= since:
        raise Unreadable("its payload is not sealed, and its queue's are")


def shown(find: Callable[[str], bytes], stored: Stored) -> tuple[bytes, Mapping[str, str]]:
    """The same for people who look: what cannot be opened is shown as it is stored, with its seal."""
    try:
        return opened(find, stored)
    except (Unreadable, UnknownKey):
        return stored.payload, stored.headers


@lru_cache(maxsize=16)
def _derived(key: bytes) -> tuple[Any, bytes]:
    """The cipher, and the key that nonces are drawn with: one key is not used for two purposes."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only when asked for
    except ImportError:
        raise Incompatible("sealed payloads need a cipher; install it: pip install 'qo-queue[crypto]'") from None
    return AESGCM(hmac.digest(key, b"qo seal", "sha256")), hmac.digest(key, b"qo nonce", "sha256")
