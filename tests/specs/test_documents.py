"""The documents agree with the program, and are valid by their standards."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import openapi_spec_validator
import pytest

from tests.specs import described
from tests.specs.documents import DOCUMENTS, text_of
from tests.specs.judge import ASYNCAPI, OPENAPI, Specifications
from tests.support.api import Answer
from topics.front.table import ROUTES

# The schema of the standard: the npm package @asyncapi/specs 6.11.1 (Apache-2.0), without spaces.
ASYNCAPI_SCHEMA = Path(__file__).parent / "data/asyncapi-3.1.0.json.xz"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_each_document_equals_the_one_generated_from_the_program(path: Path) -> None:
    made = text_of(DOCUMENTS[path]())
    assert path.read_text() == made, "python -m tests.specs.documents --write"
    assert json.loads(made) == DOCUMENTS[path](), "one line or many: the same JSON"


@pytest.mark.slow
def test_openapi_is_valid_by_its_standard() -> None:
    openapi_spec_validator.validate(OPENAPI)


@pytest.mark.slow
def test_asyncapi_is_valid_by_its_standard() -> None:
    schema = json.loads(lzma.decompress(ASYNCAPI_SCHEMA.read_bytes()))
    jsonschema_rs.Draft7Validator(schema).validate(ASYNCAPI)


def test_the_paths_of_the_document_are_exactly_the_routes_of_the_server() -> None:
    served = {
        (method.lower(), described_path)
        for route in ROUTES
        if not route.path.startswith(described.LEFT_OUT)
        for described_path in ["/".join(_place(part) for part in route.path.split("/"))]
        for method in route.methods
    }
    listed = {
        (method, path)
        for path, item in OPENAPI["paths"].items()
        for method in item
        if method != "parameters"
    }
    assert listed == served
    ids = [OPENAPI["paths"][path][method]["operationId"] for method, path in listed]
    assert len(ids) == len({*ids})


def _place(part: str) -> str:
    return f"{{{part[1:]}}}" if part.startswith(":") else part


# The judge

HEAD = {
    "content-type": "application/json",
    "x-request-id": "r",
    "date": "Sun, 22 Nov 2026 18:00:00 GMT",
    "cache-control": "no-store",
}
STATE: dict[str, Any] = {
    "topic": "a",
    "deleted": True,
    "routers_removed": [],
    "performance": {"server_total_ms": 1},
}
NOT_FOUND = {"error": {"code": "topic_not_found", "message": "the topic does not exist"}}
LIMITED = {"error": {"code": "throttled", "message": "later"}}
JUDGE = Specifications()


def answer(status: int, document: Any, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, HEAD | named, json.dumps(document).encode())


def test_the_judge_accepts_documented_responses() -> None:
    JUDGE.answered("DELETE", "/v0/topics/a?if_empty=true", answer(200, STATE))
    JUDGE.answered("POST", "/v0/topics/a/diff", answer(404, NOT_FOUND))
    JUDGE.answered("GET", "/v0/health", answer(429, LIMITED, retry_after="1"))
    JUDGE.answered("GET", "/nowhere", answer(401, _code("unauthorized")))
    JUDGE.answered("PATCH", "/v0/health", answer(405, _code("method_not_allowed")))
    JUDGE.answered_unknown(answer(400, _code("invalid_request")))
    JUDGE.came("/v0/watch?topic=a", "caught-up", '{"topic": "a", "head_seq": 1}')
    JUDGE.said({"op": "pong", "request_id": None}, {"op": "ping", "anything": 1})


def _code(code: str) -> Any:
    return {"error": {"code": code, "message": "no"}}


@pytest.mark.parametrize(
    "violate",
    [
        lambda: JUDGE.answered("DELETE", "/v0/topics/a", answer(200, STATE | {"more": 1})),
        lambda: JUDGE.answered("DELETE", "/v0/topics/a", answer(200, STATE | {"deleted": 1})),
        lambda: JUDGE.answered("DELETE", "/v0/topics/a", answer(201, STATE)),
        lambda: JUDGE.answered("DELETE", "/v0/topics/a", answer(404, NOT_FOUND)),
        lambda: JUDGE.answered("GET", "/v0/topics/a", answer(200, STATE)),
        lambda: JUDGE.answered("GET", "/v0/topics/a", answer(404, _code("router_not_found"))),
        lambda: JUDGE.answered("HEAD", "/v0/health", answer(200, STATE)),
        lambda: JUDGE.answered("GET", "/v0/health", answer(429, LIMITED)),
        lambda: JUDGE.answered("GET", "/v0/health", answer(429, LIMITED, retry_after="0")),
        lambda: JUDGE.answered("GET", "/nowhere", answer(200, STATE)),
        lambda: JUDGE.answered("GET", "/nowhere", answer(404, STATE)),
        lambda: JUDGE.answered(
            "DELETE", "/v0/topics/a", answer(200, STATE, content_type="text/html")
        ),
        lambda: JUDGE.answered_unknown(answer(418, _code("teapot"))),
        lambda: JUDGE.came("/v0/watch/wid_a", "caught-up", '{"topic": "a"}'),
        lambda: JUDGE.came("/v0/watch/wid_a", "job", "{}"),
        lambda: JUDGE.came("/v0/topics/a/work", None, "{}"),
        lambda: JUDGE.said({"op": "pong"}),
        lambda: JUDGE.said({"op": "ping"}),
        lambda: JUDGE.said({"op": "pong", "request_id": 1}, {"op": "subscribe", "topic": 5}),
    ],
)
def test_the_judge_refuses_undocumented_responses(violate: Callable[[], None]) -> None:
    with pytest.raises(AssertionError):
        violate()


def test_the_judge_checks_the_requests_that_succeeded() -> None:
    done = {
        "topic": "a",
        "deleted": 1,
        "earliest_seq": 2,
        "head_seq": 2,
        "count": 0,
        "bytes": 0,
        "performance": {"server_total_ms": 0.1},
    }
    exchange = "/v0/topics/a/delete", answer(200, done)
    JUDGE.answered("POST", *exchange, b'{"before_seq": 2, "unknown": 1}')
    with pytest.raises(AssertionError):
        JUDGE.answered("POST", *exchange, b'{"before_seq": -2}')
