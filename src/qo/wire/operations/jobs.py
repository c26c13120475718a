"""Jobs: status, result with waiting, cancel."""

from __future__ import annotations

from qo.core.message import id_text
from qo.wire.jobs import (
    CancelBody,
    CanceledOne,
    CanceledReply,
    CancelQuery,
    EventsReply,
    FoundReply,
    JobBody,
    JobsQuery,
    JobsReply,
    LookupBody,
    ResultQuery,
    read_job,
    write_job,
)
from qo.wire.operation import ACT, FOLLOW, LOOK, Codec, Operation, Verb, as_it_is, page_id

JOBS = Operation(
    method="GET",
    path="/v1/queues/{queue}/jobs",
    name="jobs",
    summary="The jobs of a queue, newest first.",
    scopes=LOOK,
    query=JobsQuery,
    replies={200: JobsReply},
    verb=Verb(
        "inspect",
        "list_jobs",
        Codec(
            lambda reply: [read_job(each) for each in reply.jobs],
            lambda found: JobsReply([write_job(each) for each in found]),
        ),
    ),
    arguments={"before": page_id("before")},
)
JOB = Operation(
    method="GET",
    path="/v1/jobs/{id}",
    name="job",
    summary="Everything that is known of a job.",
    scopes=FOLLOW,
    decides=True,
    replies={200: JobBody},
)
RESULT = Operation(
    method="GET",
    path="/v1/jobs/{id}/result",
    name="result",
    summary="A job once it is finished (200), or as it is now (202); with `wait`, held until then or `timeout_ms`.",
    scopes=FOLLOW,
    decides=True,
    query=ResultQuery,
    replies={200: JobBody, 202: JobBody},
)
JOB_EVENTS = Operation(
    method="GET",
    path="/v1/jobs/{id}/events",
    name="events",
    summary="A job's changes of state, where its queue's history is `full`.",
    scopes=FOLLOW,
    decides=True,
    replies={200: EventsReply},
    verb=Verb("inspect", "events", Codec(lambda reply: reply.events, lambda found: EventsReply(list(found)))),
    arguments={"id": Codec(as_it_is, id_text)},
)
CANCEL = Operation(
    method="POST",
    path="/v1/jobs/{id}/cancel",
    name="cancel",
    summary="Cancel a job. `requested`: it is running, and its holder is told.",
    scopes=ACT,
    decides=True,
    query=CancelQuery,
    replies={200: CanceledOne},
)
LOOKUP = Operation(
    method="POST",
    path="/v1/jobs/lookup",
    name="lookup",
    summary="Many jobs by their ids.",
    scopes=FOLLOW,
    decides=True,
    body=LookupBody,
    replies={200: FoundReply},
    repeatable=True,
    verb=Verb(
        "inspect",
        "jobs",
        Codec(lambda reply: [None if each is None else read_job(each) for each in reply.jobs], as_it_is),
    ),
)
CANCEL_MANY = Operation(
    method="POST",
    path="/v1/jobs/cancel",
    name="cancel_many",
    summary="Cancel many jobs.",
    scopes=ACT,
    decides=True,
    body=CancelBody,
    replies={200: CanceledReply},
)
