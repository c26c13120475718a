"""An operation: one thing that can be asked of a server, declared once.

The server's route, the OpenAPI document, the remote client's call and the table of the
reference come from the declaration. An operation that makes a verb and nothing else says which
(`verb`), and then needs no code on either side: its arguments are the fields of the path, the query
and the body by their names, and `arguments` says how those of other types are read and written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from qo.core.access import Scope
from qo.core.message import MessageId, checked_id, id_text
from qo.core.names import checked_key, checked_name
from qo.wire.pages import checked_limit

PRODUCE, CONSUME, ADMIN = frozenset({Scope.PRODUCE}), frozenset({Scope.CONSUME}), frozenset({Scope.ADMIN})
ACT = PRODUCE | CONSUME
"""Whoever may push to a queue or take from it; looking is not acting."""
LOOK = CONSUME | {Scope.READ}
"""Whoever may take messages from a queue may look at them."""
FOLLOW = ACT | {Scope.READ}
"""Whoever may push may follow what becomes of it: by its id, without payloads, and not in lists."""


class Codec(NamedTuple):
    """How a value is read from the wire, with its checks, and how it is written."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


def as_it_is(value: Any) -> Any:
    return value


PLAIN = Codec(as_it_is, as_it_is)


def unless_none(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else change(value)


def _read_ids(texts: Sequence[str]) -> list[MessageId]:
    return [checked_id(f"ids[{number}]", text) for number, text in enumerate(texts)]


def page_id(field: str) -> Codec:
    """The id, as text, after or before which a page goes on."""
    return Codec(unless_none(lambda text: id_text(checked_id(field, text))), as_it_is)


USUAL: Mapping[str, Codec] = {
    "queue": Codec(partial(checked_name, "queue"), as_it_is),
    "group": Codec(unless_none(partial(checked_name, "group")), as_it_is),
    "key": Codec(unless_none(partial(checked_key, "key")), as_it_is),
    "limit": Codec(checked_limit, as_it_is),
    "ids": Codec(unless_none(_read_ids), unless_none(lambda ids: [id_text(each) for each in ids])),
}
"""Arguments by name, where the wire has another type, or they are checked. All others are as they are."""


class Verb(NamedTuple):
    """Which of the broker's verbs an operation makes: `Verb("inspect", "depth")`.

    fixed    arguments that this operation always has
    body     the argument that the whole body is; else its fields are arguments, each by its name
    answer   how the verb's answer is read from the reply and written to it
    """

    part: str
    name: str
    answer: Codec = PLAIN
    fixed: Mapping[str, Any] = {}
    body: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One thing that can be asked for.

    scopes       one of these is needed; None: not even a token
    decides      the handler itself checks what its caller may do; else the path's `{queue}` is checked, if it has one
    body, query  what it takes; `body_needed`: whether it must
    replies      by status, what is in them
    repeatable   safe to repeat without a key
    verb         the broker's verb that it makes, if it is no more than that
    arguments    how the verb's arguments are read and written, where the usual way does not do
    peeks        whether a HEAD may be answered as its GET is: not if that takes messages
    large        its body may be as large as `limits.queen_body_bytes`

    A `{name*}` in the path may hold slashes as they are.
    """

    method: str
    path: str
    name: str
    summary: str
    scopes: frozenset[Scope] | None = ADMIN
    decides: bool = False
    body: Any = None
    body_needed: bool = True
    query: Any = None
    replies: Mapping[int, Any] = field(default_factory=dict)
    content: str = "application/json"
    repeatable: bool = False
    verb: Verb | None = None
    arguments: Mapping[str, Codec] = field(default_factory=dict)
    large: bool = False
    peeks: bool = True

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1].rstrip("*") for part in self.path.split("/") if part.startswith("{")]

    @property
    def takes_key(self) -> bool:
        """Whether an `Idempotency-Key` makes it safe to repeat."""
        return self.method != "GET" and not self.repeatable

    def read_arguments(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The verb's arguments, from what a request says in its path, query and body."""
        read = {name: self._codec(name).read(value) for name, value in fields.items()}
        return read if self.verb is None else {**read, **self.verb.fixed}

    def write_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """What a request says, from the verb's arguments."""
        fixed = () if self.verb is None else self.verb.fixed
        return {name: self._codec(name).write(value) for name, value in arguments.items() if name not in fixed}

    def _codec(self, argument: str) -> Codec:
        return self.arguments.get(argument) or USUAL.get(argument, PLAIN)

    @property
    def reply(self) -> Any:
        """What is in the answer of a call that succeeds."""
        return next(iter(self.replies.values()))
