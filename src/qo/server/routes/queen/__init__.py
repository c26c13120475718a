"""Queen's wire: thin translations between what its clients say and the broker's verbs."""

from __future__ import annotations

from qo.server.router import Route
from qo.server.routes.queen import ack, dead, groups, pop, push, resources, traces

ROUTES: list[Route] = [
    *push.ROUTES,
    *pop.ROUTES,
    *ack.ROUTES,
    *dead.ROUTES,
    *traces.ROUTES,
    *groups.ROUTES,
    *resources.ROUTES,
]
