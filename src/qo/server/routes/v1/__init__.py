"""Our own API. An operation that is no more than a verb has its handler from its declaration; all others are here."""

from __future__ import annotations

from qo.server.router import Handler, Route, route
from qo.server.routes.v1 import claims, groups, jobs, messages, queues, schedules, stream, tokens, workers
from qo.server.verbs import handler_of
from qo.wire.operations import OPERATIONS

HANDLERS: dict[str, Handler] = {
    "push": messages.push,
    "push_anywhere": messages.push_anywhere,
    "submit": messages.submit,
    "claim": claims.claim_queue,
    "claim_anywhere": claims.claim,
    "settle": claims.settle,
    "extend": claims.extend,
    "transact": claims.transact,
    "stream": stream.stream,
    "queues": queues.queues,
    "overview": queues.overview,
    "create_group": groups.create,
    "create_group_anywhere": groups.create_anywhere,
    "job": jobs.job,
    "result": jobs.result,
    "events": jobs.events,
    "cancel": jobs.cancel,
    "lookup": jobs.lookup,
    "cancel_many": jobs.cancel_many,
    "create_token": tokens.create,
    "revoke_token": tokens.revoke,
    "create_schedule": schedules.create,
    "schedule": schedules.show,
    "put_schedule": schedules.put,
    "change_schedule": schedules.change,
    "delete_schedule": schedules.delete,
    "run_schedule": schedules.fire,
    "schedule_runs": schedules.runs,
    "backfill_schedule": schedules.backfill,
    "preview_schedule": schedules.preview,
    "workers": workers.workers,
    "heartbeat": workers.heartbeat,
    "deregister": workers.deregister,
    "scaling": workers.scaling,
}
"""By the operation's name."""

ROUTES: list[Route] = [route(each, HANDLERS.get(each.name) or handler_of(each)) for each in OPERATIONS]
