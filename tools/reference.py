"""Writes what is declared in code into the reference, between marks: `make generated`."""

from __future__ import annotations

import re
from pathlib import Path

from qo.server.routes import service, v1
from qo.wire.operation import ACT, ADMIN, CONSUME, FOLLOW, LOOK, PRODUCE

REPOSITORY = Path(__file__).parents[1]
HTTP = REPOSITORY / "docs/reference/http.md"
SCOPES = {
    None: "none", PRODUCE: "produce", CONSUME: "consume", ADMIN: "admin", LOOK: "consume, read",
    ACT: "produce, consume", FOLLOW: "any",
}  # fmt: skip
_ROUTES = re.compile(r"(<!-- routes: [^>]*-->\n\n).*?(\n\n<!-- end of routes -->)", re.DOTALL)


def routes_table() -> str:
    """Every route of our own API, with the scope that it needs."""
    routes = [*v1.ROUTES, *service.routes(v1.ROUTES)]
    rows = [f"| `{each.method} {each.path}` | {SCOPES[each.scopes]} | {each.summary} |" for each in routes]
    return "\n".join(["| route | scope | does |", "|---|---|---|", *rows])


def with_routes(text: str) -> str:
    return _ROUTES.sub(lambda found: found[1] + routes_table() + found[2], text)


if __name__ == "__main__":
    HTTP.write_text(with_routes(HTTP.read_text()))
