"""Generates the OpenAPI 3.1 document of the HTTP API from the route table and the body structs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from tests.specs.described import JSON, LEFT_OUT, NARROWED, PARAMETERS, ROUTES, Described
from tests.specs.shapes import Error, Router, Shape, Topic, sentence
from topics import __version__
from topics.engine.access import Scope
from topics.formats.api.watch import WatchBody
from topics.formats.names import NAME_MAX
from topics.front import queries, table
from topics.front.admin import paging
from topics.front.error_answers import STATUS
from topics.front.route import BodyRule, Route
from topics.front.server_timing import SERVER_TIMING

Json = dict[str, Any]
SCHEMAS: Final = "#/components/schemas/{name}"
NAMES: Final = {"topic": Topic, "router": Router, "wid": str}
BY_CODE: Final = {kind.code: kind for kind in STATUS}
ALWAYS: Final = "invalid_request unauthorized forbidden payload_too_large throttled internal"
HEADERS: Final = {  # of error responses, by status
    401: "WWW-Authenticate",
    426: "Upgrade",
    429: "Retry-After",
    503: "Retry-After",
}
WATCH_DEFAULTS: Final = {f.encode_name: f.default for f in msgspec.structs.fields(WatchBody)}


def openapi() -> Json:
    """Return the document."""
    routes = [route for route in table.ROUTES if not route.path.startswith(LEFT_OUT)]
    mismatched = {route.name for route in routes} ^ {*ROUTES}
    assert not mismatched, f"tests/specs/described.py: ROUTES: {sorted(mismatched)}"
    shapes = [*_shapes(routes)]
    _, schemas = msgspec.json.schema_components(shapes, ref_template=SCHEMAS)
    paths: Json = {}
    refusals: Json = {}
    for route in sorted(routes, key=lambda route: route.path):
        item = paths.setdefault(_path(route), {})
        names = [*re.findall(r":(\w+)", route.path), SERVER_TIMING.name, "X-Request-Id"]
        item["parameters"] = [_ref("parameters", name) for name in names]
        for method in route.methods:
            item[method.lower()] = _operation(route, method, refusals)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": __version__,
            "summary": "A persistent event engine for one machine",
            "description": "Later versions may add members to responses: clients must ignore"
            " unknown members. Limits that are settings (TOPICS_MAX_...) are not included.",
        },
        "externalDocs": {
            "description": "All routes, fields and errors, with examples and guarantees. The page"
            " is next to this file in the package.",
            "url": "api.md",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": plain(schemas),
            "parameters": _shared_parameters(),
            "headers": _shared_headers(),
            "responses": dict(sorted(refusals.items())),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of TOPICS_API_KEYS or TOPICS_API_KEYS_FILE, and the"
                    " scopes that it needs. A server without keys accepts all requests.",
                },
                "token": {
                    "type": "apiKey",
                    "in": "query",
                    "name": "token",
                    "description": "The key, for an EventSource, which cannot send the header.",
                },
            },
        },
    }


def plain(schemas: Json) -> Json:
    """Return the schemas without titles, which would repeat their names."""
    return {
        name: {key: value for key, value in schema.items() if key != "title"}
        for name, schema in sorted(schemas.items())
    }


def _shapes(routes: Iterable[Route]) -> Iterator[Shape]:
    yield Error
    for route in routes:
        described = ROUTES[route.name]
        if described.body is not None:
            yield described.body
        if not isinstance(described.answer, str):
            yield described.answer


def _path(route: Route) -> str:
    return re.sub(r":(\w+)", r"{\1}", route.path)


def _ref(kind: str, name: str) -> Json:
    return {"$ref": f"#/components/{kind}/{name}"}


def _shape_ref(shape: Shape) -> Json:
    return _ref("schemas", shape.__name__)


def _operation(route: Route, method: str, refusals: Json) -> Json:
    described = ROUTES[route.name]
    operation: Json = {
        "operationId": _operation_id(route, method),
        "summary": described.summary,
        "security": [*_security(route)],
    }
    if parameters := [*_parameters(route)]:
        operation["parameters"] = parameters
    if described.body is not None:
        operation["requestBody"] = {
            "required": route.body is BodyRule.REQUIRED,
            "content": {JSON: {"schema": _shape_ref(described.body)}},
        }
    responses = {**_successes(route, described), **_refusals(route, described, refusals)}
    if method == "HEAD":
        responses = {
            status: {k: v for k, v in found.items() if k != "content"}
            if "$ref" not in found
            else found
            for status, found in responses.items()
        }
    operation["responses"] = {str(status): responses[status] for status in sorted(responses)}
    return operation


def _operation_id(route: Route, method: str) -> str:
    """Return the name of the route. For aliases and specifications, use the last part of the path,
    because several paths share the route's name.
    """
    stem = route.path.rpartition("/")[2].partition(".")[0]
    name = route.name
    if not route.path.startswith("/v0"):
        name = f"alias.{stem or 'index'}"
    elif name == "spec":
        name = stem
    return f"{name}.head" if method == "HEAD" else name


def _security(route: Route) -> Iterator[Json]:
    scopes = (
        []
        if route.scope is None
        else [str(one.name).lower() for one in Scope if one in route.scope]
    )
    if route.is_open:
        yield {}
    yield {"bearer": scopes}
    if route.query_token:
        yield {"token": scopes}


# Of requests


def _parameters(route: Route) -> Iterator[Json]:
    for parameter in route.parameters:
        yield _parameter(route, parameter)
    if route.name == "append":
        yield _ref("parameters", "Idempotency-Key")
    if route.name in ("watch.open", "watch.topics"):
        yield _ref("parameters", "Last-Event-ID")


def _parameter(route: Route, parameter: queries.Parameter[Any]) -> Json:
    more = dict(NARROWED.get((route.name, parameter.name), {}))
    document: Json = {
        "name": parameter.name,
        "in": "query",
        "description": more.pop("description", PARAMETERS[parameter.name]),
    }
    if more.pop("required", False):
        document["required"] = True
    default = parameter.default
    if route.name == "watch.topics":
        default = WATCH_DEFAULTS.get(parameter.name, default)
    if isinstance(parameter, queries.Names):
        items = _schema(Topic) if parameter.name == "topic" else {"type": "string"}
        document["schema"] = {"type": "array", "items": items, **more}
        return document
    schema: Json
    if parameter.parse is queries.boolean:
        schema = {"type": "boolean", "default": default}
    elif parameter.parse in (queries.integer, paging.page_size):
        schema = {"type": "integer", "minimum": 0}
        if default is not None:
            schema["default"] = default
    elif parameter.parse is queries.name_text:
        schema = {"type": "string", "maxLength": NAME_MAX}
    elif parameter.name == "cursor":
        schema = {"type": "string", "maxLength": paging.CURSOR_MAX}
    else:
        schema = {"type": "string"}
    document["schema"] = schema | more
    return document


def _schema(type_: Any) -> Json:
    return msgspec.json.schema(type_)


def _shared_parameters() -> Json:
    header: Json = {"in": "header", "schema": {"type": "string"}}
    server_timing = {
        "name": SERVER_TIMING.name,
        "in": "query",
        "description": PARAMETERS[SERVER_TIMING.name],
    }
    return {
        **{
            name: {"name": name, "in": "path", "required": True, "schema": _schema(type_)}
            for name, type_ in NAMES.items()
        },
        SERVER_TIMING.name: {
            **server_timing,
            "schema": {"type": "boolean", "default": SERVER_TIMING.default},
        },
        "Idempotency-Key": {
            "name": "Idempotency-Key",
            "description": "The same as `idempotency_key` in the body, which takes precedence.",
            **header,
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        },
        "Last-Event-ID": {
            "name": "Last-Event-ID",
            "description": "Resume after the event with this id.",
            **header,
        },
        "X-Request-Id": {
            "name": "X-Request-Id",
            "description": "An id for the response and the log. Invalid ids are replaced.",
            **header,
        },
    }


# Of responses

CACHED: Final = ["no-store", "no-store, no-transform", "no-cache"]
EVERYWHERE: Final = ("X-Request-Id", "Date", "Cache-Control")


def _shared_headers() -> Json:
    text = {"type": "string"}
    return {
        "X-Request-Id": {"description": "The id of the request in the log.", "schema": text},
        "Retry-After": {
            "description": "Seconds until a retry.",
            "required": True,
            "schema": {"type": "integer", "minimum": 1},
        },
        "WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}},
        "Upgrade": {"required": True, "schema": {"const": "websocket"}},
        "ETag": {"required": True, "schema": text},
        "Location": {
            "description": "The path of the created object.",
            "required": True,
            "schema": text,
        },
        "Date": {"required": True, "schema": text},
        "Cache-Control": {"required": True, "schema": {"enum": CACHED}},
        "Link": {"required": True, "schema": text},
    }


def _headers(*names: str) -> Json:
    return {name: _ref("headers", name) for name in (*names, *EVERYWHERE)}


def _successes(route: Route, described: Described) -> dict[int, Json]:
    if route.name == "ws":
        headers = {"Upgrade": _ref("headers", "Upgrade"), **_headers()}
        return {101: {"description": "The WebSocket is open.", "headers": headers}}
    more = {"root": ("Link",), "spec": ("ETag",)}.get(route.name, ())
    done: Json = {
        "description": "Success.",
        "headers": _headers(*more),
        "content": _content(described),
    }
    found = {200: done}
    if described.creates:
        made = {"description": "Created.", "headers": _headers("Location")}
        found[201] = {**done, **made}
    if route.name == "spec":
        found[304] = {
            "description": "The client has the current document.",
            "headers": _headers("ETag"),
        }
    return found


def _content(described: Described) -> Json:
    if not isinstance(described.answer, str):
        return {JSON: {"schema": _shape_ref(described.answer)}}
    return {
        media: {"schema": {"type": "object" if media == JSON else "string"}}
        for media in described.answer.split()
    }


def _refusals(route: Route, described: Described, refusals: Json) -> dict[int, Json]:
    codes = {*ALWAYS.split(), *described.codes.split()}
    if ":" in route.path:  # an encoded slash in a name results in an unknown path
        codes.add("not_found")
    if route.body is not BodyRule.NONE:
        codes.add("unsupported_media_type")
    if not route.is_open:
        codes.add("not_ready")
    if not route.answers_in_drain:
        codes.add("shutting_down")
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes, key=[*BY_CODE].index):
        by_status.setdefault(STATUS[BY_CODE[code]], []).append(code)
    for status, found in by_status.items():
        refusals.setdefault(".".join(found), _refusal(status, found))
    return {status: _ref("responses", ".".join(found)) for status, found in by_status.items()}


def _refusal(status: int, codes: list[str]) -> Json:
    code = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
    return {
        "description": " ".join(f"`{code}`: {sentence(BY_CODE[code])}" for code in codes),
        "headers": _headers(*((HEADERS[status],) if status in HEADERS else ())),
        "content": {JSON: {"schema": {"allOf": [_shape_ref(Error), code]}}},
    }
