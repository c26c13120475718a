"""`qo push` and `qo pop`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from qo.cli.arguments import length
from qo.cli.opened import add_command
from qo.cli.output import progress
from qo.client.arguments import at_least_one
from qo.client.client import Client
from qo.client.delivery import Delivery
from qo.client.job import JobHandle
from qo.client.outgoing import Message
from qo.core.errors import Invalid
from qo.core.lease import Release
from qo.wire.content import packed

LINES_AT_ONCE = 1000


def add_to(commands: Any) -> None:
    push = add_command(
        commands,
        "push",
        "push messages",
        _push,
        "Push one message, or with --lines one for each line of standard input. A payload is JSON; text that is not "
        "JSON is pushed as a JSON string, and what is no text as bytes. Prints the ids.",
    )
    push.add_argument("queue")
    push.add_argument("payload", nargs="?", help="JSON or text; absent or -: standard input")
    push.add_argument("--lines", action="store_true", help="each line of standard input is a message")
    push.add_argument("--kind", default="default", help="the task that handles it")
    push.add_argument("--key", help="messages of one key run in order")
    push.add_argument("--priority", type=int, default=0, help="-100 to 100, higher first")
    push.add_argument("--delay", type=length, metavar="LENGTH", help="not before so long from now: seconds, or 1h30m")
    push.add_argument("--ttl", type=length, metavar="LENGTH", help="canceled if not delivered so long after it was due")
    push.add_argument("--dedupe", metavar="KEY", help="not pushed if an unfinished message has this key")
    push.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="may be given several times")
    pop = add_command(
        commands,
        "pop",
        "take messages, print their payloads and complete them",
        _pop,
        "Take messages and print their payloads, one to a line; each is completed once it was printed. "
        "Exits 1 if there was nothing.",
    )
    pop.add_argument("queue")
    pop.add_argument("-n", "--messages", type=int, default=1, help="how many at most (default 1)")
    pop.add_argument("--wait", type=length, metavar="LENGTH", help="wait so long for the first")
    pop.add_argument("--group", default="default")
    pop.add_argument("--kind", action="append", help="only this kind; may be given several times")
    pop.add_argument("--key", help="only this key")
    pop.add_argument("--release", action="store_true", help="give them back instead: only look")


async def _push(client: Client, given: argparse.Namespace) -> int:
    headers = dict(_header(each) for each in given.header) or None
    made = (
        Message(
            payload,
            kind=given.kind,
            key=given.key,
            priority=given.priority,
            delay=given.delay,
            dedupe=given.dedupe,
            headers=headers,
            ttl=given.ttl,
        )
        for payload in _payloads(given)
    )
    queue = client.queue(given.queue)
    with progress(f"pushing to '{given.queue}'") if given.lines else contextlib.nullcontext(_no_bar) as advance:
        for batch in _batches(made):
            _print_ids(await queue.push_many(batch), as_json=given.json)
            advance(len(batch))
    return 0


def _no_bar(_: int) -> None:
    """One message needs no bar."""


def _print_ids(handles: Iterable[JobHandle], *, as_json: bool) -> None:
    for handle in handles:
        if as_json:
            print(json.dumps({"id": handle.id, "duplicate": handle.duplicate}))
        else:
            print(f"{handle.id} (a duplicate of this one)" if handle.duplicate else handle.id)


def _payloads(given: argparse.Namespace) -> Iterator[Any]:
    if given.lines:
        if given.payload not in (None, "-"):
            raise Invalid("payload", "comes from standard input with --lines")
        yield from (_value(line.rstrip(b"\n")) for line in sys.stdin.buffer)
    elif given.payload in (None, "-"):
        yield _value(sys.stdin.buffer.read().removesuffix(b"\n"))
    else:
        yield _value(os.fsencode(given.payload))


def _value(data: bytes) -> Any:
    """JSON, or else text, or else bytes."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    for message in messages:
        batch.append(message)
        if len(batch) == LINES_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise Invalid("header", f"must be NAME=VALUE, not '{text}'")
    return name, value


async def _pop(client: Client, given: argparse.Namespace) -> int:
    queue = client.queue(given.queue).group(given.group)
    deliveries = await queue.claim(
        at_least_one("--messages", given.messages), wait=given.wait, kinds=given.kind, key=given.key
    )
    try:
        for delivery in deliveries:
            sys.stdout.buffer.write(_shown(delivery, as_json=given.json))
            sys.stdout.buffer.flush()
            if not given.release:
                await delivery.complete()
    finally:  # what was not printed is given back
        left = [delivery.settlement(Release()) for delivery in deliveries if not delivery.settled]
        if left:
            await client.broker.settle(left)
    if not deliveries:
        paused = await queue.exists() and (await queue.info()).paused
        print(f"nothing in '{given.queue}'" + (": it is paused" if paused else ""), file=sys.stderr)
    return 0 if deliveries else 1


def _shown(delivery: Delivery, *, as_json: bool) -> bytes:
    """A line; bytes that are no text come out as they are, or in JSON as base64."""
    if not as_json:
        return delivery.body + b"\n"
    payload, encoded = packed(delivery.body, delivery.headers)
    told = {
        "id": delivery.id,
        "kind": delivery.kind,
        "key": delivery.key,
        "attempt": delivery.attempt,
        "headers": dict(delivery.headers),
        **({"payload_base64": encoded} if payload is msgspec.UNSET else {"payload": payload}),
    }
    return msgspec.json.encode(told) + b"\n"
