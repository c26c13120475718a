"""queues: those that a caller may see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from qo.core.outcome import QueueInfo, QueueOverview
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.wire.operation import LOOK
from qo.wire.operations.queues import OverviewReply
from qo.wire.pages import checked_limit
from qo.wire.queues import QueuesQuery, QueuesReply, write_queue

Q = TypeVar("Q", QueueInfo, QueueOverview)


async def queues(context: ServerContext, request: Request) -> Response:
    """Those that the caller may see."""
    page = request.query(QueuesQuery)
    request.allow(LOOK, [])
    found = await _visible(request, context.broker.inspect.queues, page.after, checked_limit(page.limit))
    return reply(QueuesReply([write_queue(each) for each in found]))


async def overview(context: ServerContext, request: Request) -> Response:
    """How those stand that the caller may see."""
    page = request.query(QueuesQuery)
    request.allow(LOOK, [])
    found = await _visible(request, context.broker.inspect.overview, page.after, checked_limit(page.limit))
    return reply(OverviewReply(found))


async def _visible(
    request: Request, read: Callable[[str, int], Awaitable[Sequence[Q]]], after: str, limit: int
) -> list[Q]:
    """By name, from where the caller's prefixes begin."""
    token = request.caller.token
    if token is None or not token.prefixes:
        return list(await read(after, limit))
    found: dict[str, Q] = {}
    for prefix in sorted(token.prefixes):
        start = max(after, _just_before(prefix))
        while len(found) < limit:
            names = await read(start, limit)
            within = [each for each in names if each.name.startswith(prefix)]
            found |= {each.name: each for each in within}
            if len(within) < limit:
                break
            start = within[-1].name
    return [found[name] for name in sorted(found)][:limit]


def _just_before(prefix: str) -> str:
    """What sorts before all that begins with it, and after all that sorts before these."""
    last = ord(prefix[-1])
    return prefix[:-1] + (chr(last - 1) + LAST_CHARACTER if last > 1 and not 0xD800 <= last - 1 <= 0xDFFF else "")


LAST_CHARACTER = "\U0010ffff"
