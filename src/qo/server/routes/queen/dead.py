"""Dead letters, and single messages: read, put back, removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from qo.core.errors import NotFound
from qo.core.message import PRODUCER, TRACE, TRANSACTION, checked_id, id_text
from qo.core.names import checked_key
from qo.core.outcome import DeadLetter, Job, JobState, NamedMessage
from qo.core.verbs import DeadLettersWanted
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.server.routes.queen.pop import shown_payload
from qo.server.routes.queen.push import allow_both
from qo.server.routes.queen.queries import Query
from qo.wire.operation import ADMIN, CONSUME, LOOK
from qo.wire.queen.names import (
    DEFAULT_PARTITION,
    group_name,
    iso,
    partition_id,
    read_partition_id,
    read_time,
    shown_group,
)

READ = LOOK
SCAN = 1000
MOST_SCANNED = 10_000
"""Messages of a queue that are looked through for those of a partition or a time."""

STATES: dict[str, tuple[JobState, ...]] = {
    "pending": (JobState.QUEUED,),
    "processing": (JobState.ASSIGNED, JobState.RUNNING),
    "completed": (JobState.SUCCEEDED,),
    "failed": (JobState.FAILED,),
    "dead_letter": (JobState.FAILED,),
    "canceled": (JobState.CANCELED,),
}
SHOWN = {state: name for name, states in reversed(STATES.items()) for state in states}


async def dead_letters(context: ServerContext, request: Request) -> Response:
    query = Query(request)
    queue, group = query.text("queue"), query.text("consumerGroup")
    request.allow(READ, None if queue is None else [queue])
    wanted = DeadLettersWanted(
        queue=queue,
        group=None if group is None else group_name(group),
        key=query.text("partition"),
        since=read_time("from", query.text("from")),
        until=read_time("to", query.text("to")),
        limit=query.limit,
        offset=query.offset,
    )
    found, total = await context.broker.wires.dead_letters(wanted)
    return reply({"messages": [_letter(each) for each in found], "total": total})


def _letter(letter: DeadLetter) -> dict[str, Any]:
    partition = letter.key or DEFAULT_PARTITION
    return {
        "id": letter.id,
        "transactionId": letter.headers.get(TRANSACTION) or letter.id,
        "partitionId": partition_id(letter.queue, partition),
        "queue": letter.queue,
        "partition": partition,
        "consumerGroup": shown_group(letter.group),
        "errorMessage": letter.error,
        "retryCount": max(letter.attempts - 1, 0),
        "data": shown_payload(letter.payload, letter.headers),
        "producerSub": letter.headers.get(PRODUCER),
        "createdAt": iso(letter.created_at),
        "failedAt": iso(letter.died_at),
    }


def _named(request: Request) -> tuple[str, str, str]:
    queue, key = read_partition_id(request.path["partition"])
    return queue, key, checked_key("transactionId", request.path["transaction"])


async def _dead_of(context: ServerContext, queue: str, key: str, name: str) -> list[DeadLetter]:
    """The dead letters of a message, one for each group in which it died."""
    found, _ = await context.broker.wires.dead_letters(DeadLettersWanted(queue=queue, key=key, name=name, limit=SCAN))
    return list(found)


async def retry(context: ServerContext, request: Request) -> Response:
    queue, key, name = _named(request)
    allow_both(request, [queue])
    letters = await _dead_of(context, queue, key, name)
    if not letters:
        raise NotFound(f"there is no dead letter '{name}' in this partition")
    news = [
        new
        for letter in letters
        for new in await context.broker.admin.retry_dead(queue, letter.group, [checked_id("id", letter.id)])
    ]
    replayed = id_text(news[0]) if news else None
    return reply({"success": bool(news), "result": "moved", "replayedAs": replayed, "dlqRowRemoved": bool(news)})


async def remove(context: ServerContext, request: Request) -> Response:
    queue, key, name = _named(request)
    request.allow(ADMIN, [queue])
    letters = await _dead_of(context, queue, key, name)
    removed = 0
    for letter in letters:
        removed += await context.broker.admin.purge_dead(queue, letter.group, [checked_id("id", letter.id)])
    if not removed:
        raise NotFound(f"there is no dead letter '{name}' in this partition; other messages cannot be removed")
    return reply({"success": True, "deleted": True, "removed": removed})


async def message(context: ServerContext, request: Request) -> Response:
    queue, key, name = _named(request)
    request.allow(READ, [queue])
    dead = await _dead_of(context, queue, key, name)
    found = await context.broker.wires.named_message(queue, key, name)
    if found is None:
        if not dead:
            raise NotFound(f"there is no message '{name}' in this partition")
        return reply({**_letter(dead[0]), "status": "dead_letter", "consumerGroups": []})
    return reply(_record(found, dead))


def _record(record: NamedMessage, dead: Sequence[DeadLetter]) -> dict[str, Any]:
    groups = [each for each in record.standings if each.known]
    if dead:
        status = "dead_letter"
    elif any(each.lease_expires_at is not None for each in record.standings):
        status = "processing"
    else:
        status = "completed" if groups and all(each.passed for each in groups) else "pending"
    return {
        "id": record.id,
        "transactionId": record.headers.get(TRANSACTION),
        "traceId": record.headers.get(TRACE),
        "queue": record.queue,
        "partition": record.key,
        "partitionId": partition_id(record.queue, record.key),
        "data": shown_payload(record.payload, record.headers),
        "payload": shown_payload(record.payload, record.headers),
        "producerSub": record.headers.get(PRODUCER),
        "createdAt": iso(record.created_at),
        "offset": record.offset,
        "status": status,
        "retryCount": max((each.attempts for each in record.standings), default=0),
        "errorMessage": dead[0].error if dead else None,
        "consumerGroups": [
            {
                "name": shown_group(each.group),
                "consumed": each.passed,
                "leaseExpiresAt": iso(each.lease_expires_at),
            }
            for each in groups
        ],
    }


async def messages(context: ServerContext, request: Request) -> Response:
    """The newest messages of a queue, or of those of a namespace or task, as the default group sees them."""
    query = Query(request)
    queue = query.text("queue")
    request.allow(READ, None if queue is None else [queue])
    status = query.text("status")
    states = None if status is None else STATES.get(status, ())
    since, until = read_time("from", query.text("from")), read_time("to", query.text("to"))
    wanted = query.offset + query.limit

    def fits(job: Job) -> bool:
        early = since is not None and job.created_at < since
        late = until is not None and job.created_at > until
        return query.text("partition") in (None, job.key or DEFAULT_PARTITION) and not early and not late

    found: list[Job] = []
    for name in [queue] if queue is not None else await _queues(context, query):
        found += await _jobs(context, name, states, wanted, fits)
    found.sort(key=lambda job: job.id, reverse=True)
    shown = found[query.offset : wanted]
    return reply({"messages": [_job(each) for each in shown], "total": len(found)})


async def _queues(context: ServerContext, query: Query) -> list[str]:
    namespace, task = query.text("namespace"), query.text("task")
    infos = await context.broker.inspect.queues("", SCAN)
    return [each.name for each in infos if namespace in (None, each.namespace) and task in (None, each.task)]


async def _jobs(
    context: ServerContext, queue: str, states: tuple[JobState, ...] | None, limit: int, fits: Callable[[Job], bool]
) -> list[Job]:
    """The newest that fit, page by page, as far as one call looks."""
    found: list[Job] = []
    before: str | None = None
    for _ in range(MOST_SCANNED // SCAN):
        try:
            page = await context.broker.inspect.list_jobs(queue, None, before, SCAN)
        except NotFound:
            return []
        found += [job for job in page if (states is None or job.state in states) and fits(job)]
        if len(page) < SCAN or len(found) >= limit:
            break
        before = page[-1].id
    return found[:limit]


def _job(job: Job) -> dict[str, Any]:
    partition = job.key or DEFAULT_PARTITION
    return {
        "id": job.id,
        "transactionId": job.headers.get(TRANSACTION) or job.id,
        "traceId": job.headers.get(TRACE),
        "queue": job.queue,
        "partition": partition,
        "partitionId": partition_id(job.queue, partition),
        "data": shown_payload(job.payload, job.headers),
        "producerSub": job.headers.get(PRODUCER),
        "status": "completed" if job.state is None else SHOWN[job.state],
        "retryCount": max(job.attempt - 1, 0),
        "errorMessage": job.error,
        "createdAt": iso(job.created_at),
        "leaseExpiresAt": iso(job.lease_expires_at),
        "completedAt": iso(job.finished_at),
    }


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/dlq",
        name="queen_dlq",
        summary="Dead letters, newest first.",
        handle=dead_letters,
        scopes=READ,
        decides=True,
    ),
    Route(
        method="POST",
        path="/api/v1/messages/{partition}/{transaction*}/retry",
        name="queen_retry",
        summary="Put a dead letter back.",
        handle=retry,
        scopes=CONSUME,
        decides=True,
    ),
    Route(
        method="DELETE",
        path="/api/v1/messages/{partition}/{transaction*}",
        name="queen_delete_message",
        summary="Remove a dead letter.",
        handle=remove,
        decides=True,
    ),
    Route(
        method="GET",
        path="/api/v1/messages/{partition}/{transaction*}",
        name="queen_message",
        summary="One message, and how far each group is with it.",
        handle=message,
        scopes=READ,
        decides=True,
    ),
    Route(
        method="GET",
        path="/api/v1/messages",
        name="queen_messages",
        summary="The newest messages.",
        handle=messages,
        scopes=READ,
        decides=True,
    ),
]
