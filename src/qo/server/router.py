"""Routes: one table, from which calls are dispatched, described and counted."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from qo.core.errors import Invalid, NotFound
from qo.server.request import Answer, Request
from qo.wire.operation import Operation

if TYPE_CHECKING:
    from qo.server.context import ServerContext

Handler = Callable[["ServerContext", Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route(Operation):
    """An operation, and what does it."""

    handle: Handler


def route(operation: Operation, handle: Handler) -> Route:
    return Route(**{each.name: getattr(operation, each.name) for each in fields(Operation)}, handle=handle)


class WrongMethod(Exception):
    """The path is there, for other methods."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self.allowed = ", ".join(sorted(allowed))
        super().__init__(f"this path takes {self.allowed}")


KNOWN_PATHS = 4096
KNOWN_PATH_BYTES = 256
"""Longer paths are looked up each time: what is remembered was sent by anyone."""


class NoRoute(NotFound):
    """The path is not there at all."""

    def __init__(self) -> None:
        super().__init__("there is no such path; GET /v1/openapi.json lists those that there are")


class Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.parameter: Node | None = None
        self.routes: dict[str, Route] = {}


class Router:
    """Finds the route of a path, segment by segment. A segment may hold an encoded slash.

    Paths in which names may hold plain slashes are tried afterwards, in their order.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._root = Node()
        self._known: dict[tuple[str, bytes], tuple[Route, dict[str, str]]] = {}
        self._parameters = {route.name: route.parameters for route in self.routes}
        self._loose = [Loose(route) for route in self.routes if "*}" in route.path]
        for route in self.routes:
            if "*}" in route.path:
                continue
            node = self._root
            for part in route.path.split("/")[1:]:
                if part.startswith("{"):
                    node.parameter = node.parameter or Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(part, Node())
            node.routes[route.method] = route

    def find(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """The route, and what the path says in its parameters. Paths that were found before are found at once."""
        known = self._known.get((method, raw_path))
        if known is None:
            known = self._look_up(method, raw_path)
            if len(raw_path) <= KNOWN_PATH_BYTES:
                self._remember(method, raw_path, known)
        return known

    def _remember(self, method: str, raw_path: bytes, found: tuple[Route, dict[str, str]]) -> None:
        if len(self._known) >= KNOWN_PATHS:
            self._known.clear()
        self._known[method, raw_path] = found

    def _look_up(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        try:
            return self._look_up_strictly(method, raw_path)
        except (NoRoute, WrongMethod):
            found = self._look_up_loosely(method, raw_path)
            if found is None:
                raise
            return found

    def _look_up_loosely(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]] | None:
        wanted = "GET" if method == "HEAD" else method
        others = []
        for loose in self._loose:
            match = loose.match(raw_path)
            if match is None:
                continue
            if loose.route.method == wanted and (method != "HEAD" or loose.route.peeks):
                return loose.route, {name: _decoded(value) for name, value in match.items()}
            if not any(b"/" in value for value in match.values()):  # else it is as likely a path that is not served
                others.append(loose.route.method)
        if others:
            raise WrongMethod(others)
        return None

    def _look_up_strictly(self, method: str, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        values: list[str] = []
        node = self._root
        for raw in raw_path.split(b"/")[1:]:
            part = _decoded(raw)
            child = node.children.get(part)
            if child is None:
                child = node.parameter
                values.append(part)
            if child is None:
                raise NoRoute
            node = child
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None or (method == "HEAD" and not route.peeks):
            if not node.routes:
                raise NoRoute
            raise WrongMethod(node.routes)
        return route, dict(zip(self._parameters[route.name], values, strict=True)) if values else {}


class Loose:
    """A path in which names may hold slashes. Matched in one pass from both ends: the last of several fits counts."""

    def __init__(self, route: Route) -> None:
        self.route = route
        pieces = re.split(r"\{(\w+\*?)\}", route.path)
        self._between = [piece.encode() for piece in pieces[::2]]
        self._names = pieces[1::2]

    def match(self, path: bytes) -> dict[str, bytes] | None:
        first, *between, last = self._between
        if not (path.startswith(first) and path.endswith(last)) or len(path) < len(first) + len(last):
            return None
        start, end = len(first), len(path) - len(last)
        names, found = list(self._names), {}
        while len(names) > 1:
            from_left = not names[0].endswith("*")
            separator = between.pop(0 if from_left else -1)
            place = path.find(separator, start, end) if from_left else path.rfind(separator, start, end)
            if place < 0:
                return None
            if from_left:
                found[names.pop(0)] = path[start:place]
                start = place + len(separator)
            else:
                found[names.pop()] = path[place + len(separator) : end]
                end = place
        found[names.pop()] = path[start:end]
        if not all(found.values()) or any(b"/" in value for name, value in found.items() if not name.endswith("*")):
            return None
        return {name.rstrip("*"): value for name, value in found.items()}


def _decoded(raw: bytes) -> str:
    try:
        return unquote_to_bytes(raw).decode() if b"%" in raw else raw.decode()
    except UnicodeDecodeError:
        raise Invalid("path", "is not valid UTF-8") from None
