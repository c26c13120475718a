"""queues: settings, pause, purge, and looking at them."""

from __future__ import annotations

import msgspec

from qo.core.names import DEFAULT_GROUP, checked_name
from qo.core.outcome import Depth, QueueInfo
from qo.server.house import House
from qo.server.request import Request, Response, reply
from qo.server.router import FOLLOW, LOOK, Route
from qo.server.routes.v1.pages import Page, checked_limit
from qo.wire.kinds import Number
from qo.wire.queues import (
    CountReply,
    DeletedReply,
    HealthReply,
    LanesReply,
    PausedReply,
    QueueBody,
    QueuesReply,
    Settings,
    SettingsReply,
    plain_settings,
    write_queue,
)


class QueuesQuery(Page, forbid_unknown_fields=True):
    after: str = ""


class GroupQuery(msgspec.Struct, forbid_unknown_fields=True):
    group: str = DEFAULT_GROUP


class LanesQuery(Page, forbid_unknown_fields=True):
    group: str = DEFAULT_GROUP
    after: Number = 0


_settings = msgspec.json.Decoder(Settings)


async def queues(house: House, request: Request) -> Response:
    """Those that the caller may see."""
    page = request.query(QueuesQuery)
    request.allow(LOOK, [])
    found = await _visible(house, request, page.after, checked_limit(page.limit))
    return reply(QueuesReply([write_queue(each) for each in found]))


async def _visible(house: House, request: Request, after: str, limit: int) -> list[QueueInfo]:
    """By name, from where the caller's prefixes begin."""
    token = request.caller.token
    if token is None or not token.prefixes:
        return list(await house.broker.inspect.queues(after, limit))
    found: dict[str, QueueInfo] = {}
    for prefix in sorted(token.prefixes):
        start = max(after, _just_before(prefix))
        while len(found) < limit:
            names = await house.broker.inspect.queues(start, limit)
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


async def queue(house: House, request: Request) -> Response:
    return reply(write_queue(await house.broker.inspect.queue(checked_name("queue", request.queue))))


async def configure(house: House, request: Request) -> Response:
    name = checked_name("queue", request.queue)
    changes = request.read(_settings)
    settings = await house.broker.admin.configure(name, changes, nonce=request.nonce)
    return reply(SettingsReply(plain_settings(settings)))


async def delete(house: House, request: Request) -> Response:
    name = checked_name("queue", request.queue)
    return reply(DeletedReply(await house.broker.admin.delete_queue(name, nonce=request.nonce)))


async def pause(house: House, request: Request) -> Response:
    await house.broker.admin.pause(checked_name("queue", request.queue), True, nonce=request.nonce)
    return reply(PausedReply(True))


async def resume(house: House, request: Request) -> Response:
    await house.broker.admin.pause(checked_name("queue", request.queue), False, nonce=request.nonce)
    return reply(PausedReply(False))


async def purge(house: House, request: Request) -> Response:
    name = checked_name("queue", request.queue)
    return reply(CountReply(await house.broker.admin.purge(name, nonce=request.nonce)))


async def depth(house: House, request: Request) -> Response:
    group = checked_name("group", request.query(GroupQuery).group)
    return reply(await house.broker.inspect.depth(checked_name("queue", request.queue), group))


async def lanes(house: House, request: Request) -> Response:
    page = request.query(LanesQuery)
    name, group = checked_name("queue", request.queue), checked_name("group", page.group)
    found = await house.broker.inspect.lanes(name, group, page.after, checked_limit(page.limit))
    return reply(LanesReply(list(found)))


async def health(house: House, _: Request) -> Response:
    return reply(await house.broker.inspect.health())


ROUTES = [
    Route(
        method="GET",
        path="/v1/queues",
        name="queues",
        summary="The queues there are, by name.",
        handle=queues,
        scopes=LOOK,
        decides=True,
        query=QueuesQuery,
        answers={200: QueuesReply},
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue}",
        name="queue",
        summary="One queue and all of its settings.",
        handle=queue,
        scopes=FOLLOW,
        answers={200: QueueBody},
    ),
    Route(
        method="PATCH",
        path="/v1/queues/{queue}",
        name="configure",
        summary="Create a queue if need be and change some of its settings; durations in seconds. Answers all of them.",
        handle=configure,
        body=Settings,
        answers={200: SettingsReply},
    ),
    Route(
        method="DELETE",
        path="/v1/queues/{queue}",
        name="delete_queue",
        summary="Remove a queue and all that is in it.",
        handle=delete,
        answers={200: DeletedReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/pause",
        name="pause",
        summary="Stop claims. Pushes and settles go on.",
        handle=pause,
        answers={200: PausedReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/resume",
        name="resume",
        summary="Let claims go on.",
        handle=resume,
        answers={200: PausedReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/purge",
        name="purge",
        summary="Remove every message, for every group. How many there were.",
        handle=purge,
        answers={200: CountReply},
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue}/depth",
        name="depth",
        summary="How much of a queue is still ahead of a group.",
        handle=depth,
        scopes=FOLLOW,
        query=GroupQuery,
        answers={200: Depth},
    ),
    Route(
        method="GET",
        path="/v1/queues/{queue}/lanes",
        name="lanes",
        summary="The lanes of a queue, and where a group stands in them.",
        handle=lanes,
        scopes=LOOK,
        query=LanesQuery,
        answers={200: LanesReply},
    ),
    Route(
        method="GET",
        path="/v1/health",
        name="store_health",
        summary="What the store says about itself.",
        handle=health,
        answers={200: HealthReply},
    ),
]
