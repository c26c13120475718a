"""A job as plain data: what a web handler returns and a command prints."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NotRequired, TypedDict

import msgspec

from qo.client.payload import result_value, unpacked
from qo.core.errors import Invalid
from qo.core.outcome import DeadLetter, Job


class JobInfo(TypedDict):
    """One message of the default group. Times are ISO 8601 texts; payload and result are what was pushed and returned.

    A payload that was pushed as bytes stands in `payload_base64`, a result that is not JSON in `result_base64`.
    No state: its queue keeps no history of it.
    """

    id: str
    queue: str
    kind: str
    key: str | None
    state: str | None
    attempt: int
    payload: NotRequired[Any]
    payload_base64: NotRequired[str]
    headers: dict[str, str]
    created_at: str
    due_at: str
    lease_owner: str | None
    lease_expires_at: str | None
    heartbeat_at: str | None
    started_at: str | None
    finished_at: str | None
    reason: str | None
    error: str | None
    result: Any
    result_base64: NotRequired[str]


class LetterInfo(TypedDict):
    """A dead letter, with the message that it was."""

    id: str
    queue: str
    group: str
    kind: str
    key: str | None
    priority: int
    payload: NotRequired[Any]
    payload_base64: NotRequired[str]
    headers: dict[str, str]
    attempts: int
    losses: int
    reason: str
    error: str
    created_at: str
    died_at: str


def job_info(job: Job) -> JobInfo:
    plain = {name: _plain(getattr(job, name)) for name in JobInfo.__annotations__ if hasattr(job, name)}
    plain.pop("payload")
    plain |= _payload(job.payload, job.headers)
    try:
        plain["result"] = result_value(job.result)
    except msgspec.DecodeError:  # whoever completed it keeps another form
        plain["result"] = None
        plain["result_base64"] = base64.b64encode(job.result or b"").decode()
    return plain  # type: ignore[return-value]  # every key that the type names


def letter_info(letter: DeadLetter) -> LetterInfo:
    plain = {name: _plain(getattr(letter, name)) for name in LetterInfo.__annotations__ if hasattr(letter, name)}
    plain.pop("payload")
    return {**plain, **_payload(letter.payload, letter.headers)}  # type: ignore[typeddict-item]


def first_line(error: str | None) -> str:
    """An error without its trace."""
    return (error or "").partition("\n")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return str(value) if isinstance(value, str) else value


def _payload(payload: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    try:
        value = unpacked(payload, headers)
    except (Invalid, msgspec.DecodeError):
        value = payload
    if not isinstance(value, bytes):
        return {"payload": value}
    return {"payload_base64": base64.b64encode(value).decode()}
