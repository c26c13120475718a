"""The OpenAPI document, from the table of routes and the wire's types."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import DateTimeType, StructType, UnionType, multi_type_info

from qo.core.names import KEY_LIMIT, NAME_LIMIT
from qo.core.version import __version__
from qo.server.router import Route
from qo.wire.kinds import NO_CONTROL
from qo.wire.problems import CONTENT, KINDS, Problem
from qo.wire.queues import SettingsBody

REFERENCE = "#/components/schemas/{name}"
NAMED = {"type": "string", "minLength": 1, "maxLength": NAME_LIMIT, "pattern": NO_CONTROL}
UUID = {"type": "string", "format": "uuid"}
KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LIMIT},
    "description": "Makes the call safe to repeat within an hour: the second time the first answer is given.",
}


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The document for these routes."""
    schemas = _Schemas(routes)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "qo",
            "version": __version__,
            "description": "A durable queue. Errors are problems (RFC 9457).",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """Every type that a route takes or gives, and where the document has it."""

    def __init__(self, routes: Sequence[Route]) -> None:
        kinds: list[Any] = [Problem, SettingsBody]
        for route in routes:
            for kind in (route.body, *route.replies.values()):
                kinds += kind if isinstance(kind, tuple) else [] if kind is None else [kind]
        found, self.components = msgspec.json.schema_components(kinds, ref_template=REFERENCE)
        self._of = list(zip(kinds, found, strict=True))
        for struct in _structs(kinds):
            _tell_more(self.components[struct.cls.__name__], struct)

    def of(self, kind: Any) -> dict[str, Any]:
        """Of several kinds, one."""
        if isinstance(kind, tuple):
            return {"anyOf": [self.of(each) for each in kind]}
        return next(schema for known, schema in self._of if known == kind)


def _structs(kinds: Sequence[Any]) -> list[StructType]:
    """Every struct that these kinds are made of."""
    found: dict[type, StructType] = {}
    waiting: list[Any] = list(multi_type_info(kinds))
    while waiting:
        info = waiting.pop()
        if isinstance(info, StructType):
            if info.cls in found:
                continue
            found[info.cls] = info
            waiting += [field.type for field in info.fields]
        waiting += [*getattr(info, "types", ()), *getattr(info, "item_types", ())]
        waiting += [inner for name in ("type", "item_type", "value_type") if (inner := getattr(info, name, None))]
    return list(found.values())


def _tell_more(schema: dict[str, Any], struct: StructType) -> None:
    """Say of times that they are; and of defaults in words: with the keyword, generated clients demand the field."""
    for field in struct.fields:
        about = schema["properties"][field.encode_name]
        options = field.type.types if isinstance(field.type, UnionType) else (field.type,)
        if any(isinstance(each, DateTimeType) for each in options):
            for told in about.get("anyOf", [about]):
                if told.get("type") == "string":
                    told["format"] = "date-time"
        if about.pop("default", None):
            about["description"] = f"By default {json.dumps(field.default if field.default is not NODEFAULT else {})}."


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": UUID if "/jobs/" in route.path else NAMED}
        for name in route.parameters
    ]
    parameters += _query(route.query)
    if route.takes_key:
        parameters.append(KEY_HEADER)
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": parameters,
        "responses": _responses(route, schemas),
    }
    if route.scopes is not None:
        operation["security"] = [{"token": []}, {}]
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.body_needed,
            "content": {"application/json": {"schema": schemas.of(route.body)}},
        }
    return operation


def _query(kind: Any) -> list[dict[str, Any]]:
    if kind is None:
        return []
    [top], components = msgspec.json.schema_components([kind], ref_template=REFERENCE)
    schema = components[top["$ref"].rsplit("/", 1)[1]]
    return [
        {"name": name, "in": "query", "required": False, "schema": _without_null(about, components)}
        for name, about in schema["properties"].items()
    ]


def _without_null(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    """A parameter that is absent is null; one that is given is not."""
    if "$ref" in schema:
        return dict(components[schema["$ref"].rsplit("/", 1)[1]])
    if "anyOf" not in schema:
        return schema
    [rest] = [each for each in schema["anyOf"] if each.get("type") != "null"]
    return _without_null(rest, components)


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, kind in route.replies.items():
        responses[str(status)] = {"description": HTTPStatus(status).phrase}
        if kind is not None:
            responses[str(status)]["content"] = {route.content: {"schema": schemas.of(kind)}}
    problem = {CONTENT: {"schema": schemas.of(Problem)}}
    for status in sorted({kind.status for kind in KINDS} | {HTTPStatus.METHOD_NOT_ALLOWED}):
        given = responses.setdefault(str(status.value), {"description": status.phrase, "content": {}})
        given["content"] = {**problem, **given["content"]}
    return responses
