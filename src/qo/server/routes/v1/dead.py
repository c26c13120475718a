"""Dead letters: list, retry, purge."""

from __future__ import annotations

import msgspec

from qo.core.message import MessageId, checked_id, id_text
from qo.core.names import checked_name
from qo.server.house import House
from qo.server.request import Request, Response, reply
from qo.server.router import CONSUME, LOOK, Route
from qo.server.routes.v1.pages import Page, checked_limit
from qo.wire.jobs import DeadReply, IdsReply, LettersBody, write_dead
from qo.wire.queues import CountReply


class DeadQuery(Page, forbid_unknown_fields=True):
    group: str | None = None
    after: str | None = None


_letters = msgspec.json.Decoder(LettersBody)


async def dead(house: House, request: Request) -> Response:
    page = request.query(DeadQuery)
    name = checked_name("queue", request.queue)
    group = None if page.group is None else checked_name("group", page.group)
    if page.after is not None:
        checked_id("after", page.after)
    found = await house.broker.inspect.dead(name, group, page.after, checked_limit(page.limit))
    return reply(DeadReply([write_dead(each) for each in found]))


async def retry(house: House, request: Request) -> Response:
    name, group, ids = _named(house, request)
    news = await house.broker.admin.retry_dead(name, group, ids, nonce=request.nonce)
    return reply(IdsReply([id_text(each) for each in news]))


async def purge(house: House, request: Request) -> Response:
    name, group, ids = _named(house, request)
    return reply(CountReply(await house.broker.admin.purge_dead(name, group, ids, nonce=request.nonce)))


def _named(house: House, request: Request) -> tuple[str, str, list[MessageId] | None]:
    body = request.read(_letters)
    house.check_count("ids", body.ids or [])
    ids = None if body.ids is None else [checked_id("ids", each) for each in body.ids]
    return checked_name("queue", request.queue), checked_name("group", body.group), ids


ROUTES = [
    Route(
        method="GET",
        path="/v1/queues/{queue}/dead",
        name="dead",
        summary="Dead letters, oldest first.",
        handle=dead,
        scopes=LOOK,
        query=DeadQuery,
        answers={200: DeadReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/dead/retry",
        name="retry_dead",
        summary="Push dead letters again, addressed to their group. Their new ids.",
        handle=retry,
        scopes=CONSUME,
        body=LettersBody,
        body_needed=False,
        answers={200: IdsReply},
    ),
    Route(
        method="POST",
        path="/v1/queues/{queue}/dead/purge",
        name="purge_dead",
        summary="Remove dead letters. How many there were.",
        handle=purge,
        body=LettersBody,
        body_needed=False,
        answers={200: CountReply},
    ),
]
