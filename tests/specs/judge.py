"""The judge: checks that responses, events and messages are exactly as specified.

The documents permit additional members, because later versions may add some. Here objects are
closed, so that an undocumented member is an error. A request that succeeded must be documented,
too.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from typing import Any, Final

from jsonschema_rs import Draft202012Validator, ValidationError

from tests.support.api import Answer
from topics.errors import MethodNotAllowed, NotFound
from topics.front import table
from topics.front.data.specs import FOLDER

Json = dict[str, Any]
OPENAPI: Final[Json] = json.loads((FOLDER / "openapi.json").read_bytes())
ASYNCAPI: Final[Json] = json.loads((FOLDER / "asyncapi.json").read_bytes())
JSON: Final = "application/json"
# of requests without a documented path
EXTERNAL_PATHS: Final = {400, 401, 403, 404, 405, 413, 429, 500, 503}
SHOWN: Final = 600


def closed(schema: Any) -> Any:
    """Return a schema whose objects permit no other members."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: closed(each) for name, each in schema.items()}
    if "properties" in found and "type" in found:
        found.setdefault("additionalProperties", False)
    return found


CLOSED: Final = {id(document): closed(document["components"]) for document in (OPENAPI, ASYNCAPI)}


def validator(document: Json, schema: Json, *, is_open: bool = False) -> Draft202012Validator:
    """Return a validator of a schema that may contain references to those of the document."""
    components = document["components"] if is_open else CLOSED[id(document)]
    return Draft202012Validator({**schema, "components": components})


def check(found: Draft202012Validator, value: Any, what: str) -> None:
    """Raise an error for the first violation."""
    try:
        found.validate(value)
    except ValidationError as error:
        path = "/".join(map(str, error.instance_path))
        raise AssertionError(f"{what}: {path}: {error.message[:SHOWN]}") from None


def of_document(reference: Json) -> Json:
    """Resolve a reference within the OpenAPI document."""
    if "$ref" not in reference:
        return reference
    found: Any = OPENAPI
    for name in reference["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    return dict(found)


def template_of(method: str, target: str) -> str | None:
    """Return the documented path that the server uses for a target."""
    try:
        route = table.match(method, target.encode("latin-1")).route
    except (NotFound, MethodNotAllowed):
        return None
    return "/".join(
        f"{{{part[1:]}}}" if part.startswith(":") else part for part in route.path.split("/")
    )


@cache
def schema_of(template: str, method: str, status: int, media: str) -> Draft202012Validator:
    """Return the schema of a body."""
    response = of_document(OPENAPI["paths"][template][method]["responses"][str(status)])
    return validator(OPENAPI, response["content"][media]["schema"])


@cache
def refusal_of(status: int) -> Draft202012Validator:
    """Return the schema of a refusal, which may be of any route."""
    found = [
        of_document(responses[str(status)])["content"][JSON]["schema"]
        for item in OPENAPI["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict) and str(status) in (responses := operation["responses"])
        if "$ref" in responses[str(status)]
    ]
    assert found or status == 405, f"no route answers {status}"
    codes = {"properties": {"error": {"properties": {"code": {"enum": ["method_not_allowed"]}}}}}
    error = {"allOf": [{"$ref": "#/components/schemas/Error"}, codes]}
    return validator(OPENAPI, {"anyOf": found or [error]})


@cache
def body_of(template: str, method: str) -> Draft202012Validator | None:
    """Return the schema of a request's body."""
    body = OPENAPI["paths"][template][method].get("requestBody")
    if body is None:
        return None
    return validator(OPENAPI, body["content"][JSON]["schema"], is_open=True)


@cache
def payload_of(channel: str, message: str) -> Draft202012Validator:
    """Return the schema of an event or message."""
    messages = ASYNCAPI["channels"][channel]["messages"]
    assert message in messages, f"{channel} knows no {message}"
    return validator(ASYNCAPI, messages[message]["payload"], is_open=message in COMMANDS)


COMMANDS: Final = {
    reference["$ref"].rpartition("/")[2]
    for reference in ASYNCAPI["operations"]["socket.receive"]["messages"]
}


def content_of(answer: Answer) -> bytes:
    """Return the decoded body."""
    is_packed = answer.headers.get("content-encoding") == "gzip"
    return gzip.decompress(answer.body) if is_packed else answer.body


def channel_of(target: str) -> str:
    """Return the channel of a stream's path."""
    path = target.partition("?")[0]
    if path.endswith("/work"):
        return "work"
    return "watch" if path == "/v0/watch" else "session"


class Specifications:
    """See `tests.support.traffic_checks`."""

    def answered(self, method: str, target: str, answer: Answer, body: bytes | None = None) -> None:
        template = template_of(method, target)
        if template is None:
            if (method, answer.status) != ("OPTIONS", 204):  # a preflight
                assert answer.status in EXTERNAL_PATHS, f"{method} {target}: {answer}"
                self._refused(answer, is_head=method == "HEAD")
            return
        what = f"{method} {template} {answer.status}"
        operation = OPENAPI["paths"][template][method.lower()]
        assert str(answer.status) in operation["responses"], f"{what}: no such status: {answer}"
        response = of_document(operation["responses"][str(answer.status)])
        self._check_headers(response, answer, what)
        if method == "HEAD" or "content" not in response:
            assert not answer.body, f"{what}: a body: {answer}"
            return
        media = answer.headers.get("content-type", "").partition(";")[0]
        assert media in response["content"], f"{what}: no such media type: {media!r}"
        if media == JSON:
            document = json.loads(content_of(answer))
            check(schema_of(template, method.lower(), answer.status, media), document, what)
        if (
            body is not None
            and answer.status < 300
            and (found := body_of(template, method.lower()))
        ):
            check(found, json.loads(body or b"{}"), f"{what}, the request")

    def answered_unknown(self, answer: Answer) -> None:
        if answer.status >= 400:
            self._refused(answer)

    def _refused(self, answer: Answer, *, is_head: bool = False) -> None:
        media = answer.headers.get("content-type", "").partition(";")[0]
        assert media == JSON, answer
        if not is_head:
            document = json.loads(content_of(answer))
            check(refusal_of(answer.status), document, f"a refusal {answer.status}")

    def _check_headers(self, response: Json, answer: Answer, what: str) -> None:
        for name, reference in response.get("headers", {}).items():
            header, value = of_document(reference), answer.headers.get(name.lower())
            assert value is not None or not header.get("required"), f"{what}: no {name}"
            if value is not None:
                is_number = header["schema"].get("type") == "integer"
                found = Draft202012Validator(header["schema"])
                check(found, int(value) if is_number else value, f"{what}: {name}")

    def came(self, target: str, event: str | None, data: str) -> None:
        channel = channel_of(target)
        assert event is not None, f"{channel}: an event without a name: {data}"
        check(payload_of(channel, event), json.loads(data), f"{channel} {event}")

    def said(self, message: Any, command: Any = None) -> None:
        op = message["op"]
        assert op not in COMMANDS, f"the server sent a command: {message}"
        check(payload_of("socket", op), message, f"socket {op}")
        if command is not None and op != "error":
            check(payload_of("socket", command["op"]), command, f"socket {command['op']}")
