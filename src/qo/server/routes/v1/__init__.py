"""Our own API: thin translations between the wire's types and the broker's verbs."""

from __future__ import annotations

from qo.server.router import Route
from qo.server.routes.v1 import claims, dead, groups, jobs, messages, queues, stream, tokens, workers

ROUTES: list[Route] = [
    *messages.ROUTES,
    *claims.ROUTES,
    *stream.ROUTES,
    *queues.ROUTES,
    *groups.ROUTES,
    *jobs.ROUTES,
    *dead.ROUTES,
    *tokens.ROUTES,
    *workers.ROUTES,
]
