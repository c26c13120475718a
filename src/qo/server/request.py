"""A request as routes see it, and what they answer."""

from __future__ import annotations

import asyncio
import typing
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl

import msgspec

from qo.core.access import Scope
from qo.core.errors import Invalid, TooLarge, not_one_of
from qo.core.names import checked_key, suggestion
from qo.server.authenticator import ANYONE
from qo.wire.choices import choices_at

T = TypeVar("T")

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

MOST_PARAMETERS = 100
JSON = b"application/json"
_encode = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """Nobody is left to answer."""


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Streaming(NamedTuple):
    """An answer that goes on: it is given the means to send."""

    run: Callable[[Receive, Send, list[tuple[bytes, bytes]]], Awaitable[None]]


Answer = Response | Streaming


def reply(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(int(status), _encode(value))


EMPTY = Response(HTTPStatus.NO_CONTENT.value)


class Request:
    """One call: where it went, who made it, and what it says."""

    __slots__ = ("_receive", "body", "caller", "client", "headers", "id", "path", "query_text")

    def __init__(self, scope: Event, receive: Receive, headers: Mapping[bytes, bytes], id: str) -> None:
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        self.headers = headers
        self.id = id
        self.caller = ANYONE
        self.path: dict[str, str] = {}
        self.query_text: bytes = scope["query_string"]
        self.body = b""
        self._receive = receive

    @property
    def queue(self) -> str:
        return self.path["queue"]

    @property
    def nonce(self) -> str | None:
        """The key under which this call may be repeated; each token has its own."""
        given = self.headers.get(b"idempotency-key")
        if given is None:
            return None
        key = checked_key("Idempotency-Key", given.decode("latin-1"))
        return key if self.caller.token is None else f"{self.caller.token.id} {key}"

    def allow(self, scopes: Collection[Scope], queues: Collection[str] | None) -> None:
        """Refuse the call unless its caller may act so on all of these queues."""
        self.caller.check(scopes, queues)

    def read(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, checked."""
        try:
            return decoder.decode(self.body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # said in our words
            return _checked(lambda: decoder.decode(self.body or b"{}"), decoder.type)

    def query(self, kind: type[T]) -> T:
        """The query's parameters, checked; each may be given once, but for those that are lists."""
        known = msgspec.structs.fields(kind)  # type: ignore[arg-type]
        names = [field.name for field in known]
        lists = [field.name for field in known if typing.get_origin(field.type) is list]
        given: dict[str, str | list[str]] = {}
        for name, value in _pairs(self.query_text):
            if name in lists:
                given[name] = [*given.get(name, ()), value]
                continue
            if name in given:
                raise Invalid(name, "is given twice")
            given[name] = value
        for name in given:
            if name not in names:
                raise Invalid(name, "is not a parameter of this call" + suggestion(name, names))
        return _checked(lambda: msgspec.convert(given, kind, strict=False), kind)

    def pairs(self) -> list[tuple[str, str]]:
        """The query's parameters as they came."""
        return _pairs(self.query_text)

    def while_here(self) -> WhileHere:
        """A block that is left with `ClientGone` if the client hangs up."""
        return WhileHere(self._receive)

    async def read_body(self, limit: int) -> None:
        declared = self.headers.get(b"content-length")
        if declared is not None and (not declared.isdigit() or int(declared) > limit):
            raise _too_large(limit)
        message = await self._receive()
        if not message.get("more_body") and message["type"] == "http.request":
            self.body = message.get("body", b"")
        else:
            self.body = await self._read_on(message, limit)
        if len(self.body) > limit:
            raise _too_large(limit)

    async def _read_on(self, message: Event, limit: int) -> bytes:
        parts, size = [], 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _too_large(limit)
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._receive()


def _pairs(query: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
    except ValueError:
        raise Invalid("query", f"has more than {MOST_PARAMETERS} parameters") from None


def _fields(kind: type) -> Collection[str]:
    return getattr(kind, "__struct_fields__", ())


def _too_large(limit: int) -> TooLarge:
    return TooLarge("body", f"must have at most {limit} bytes (setting limits.body_bytes)")


def _checked(read: Callable[[], T], kind: type[T]) -> T:
    """Read what was sent. A mistake in it names the field that has it, and what that field allows."""
    try:
        return read()
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at `$")
        path = where.rstrip("`")
        field = path.lstrip(".") or "body"
        if said.startswith("Object contains unknown field"):
            field = said.split("`")[1]
            raise Invalid(field, "is not known here" + suggestion(field, _fields(kind))) from None
        if said.startswith("Invalid") and (choices := choices_at(kind, path)):
            raise not_one_of(field, said.partition(" value ")[2].strip("'"), choices) from None
        raise Invalid(field, said[0].lower() + said[1:]) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Invalid("body", f"is not JSON: {error}") from None
    except RecursionError:
        raise Invalid("body", "is nested too deeply") from None


class WhileHere:
    """Cancels what happens inside when the client hangs up, so that the broker gives back what it got."""

    __slots__ = ("_gone", "_receive", "_task", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.get_running_loop().create_task(self._notice())
        return self

    async def _notice(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if self._gone and isinstance(error, asyncio.CancelledError):
            self._task.uncancel()
            raise ClientGone from None
