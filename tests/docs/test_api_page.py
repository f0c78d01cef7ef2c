"""The page of the API: it names exactly the routes, errors, fields, parameters and limits of the
code, and it has every section that a comment cites.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from tests.docs.pages import FENCE, ROOT
from topics.actors.shard.peers import PEER_UNAVAILABLE
from topics.actors.shard_client.readiness import STATE_REASONS
from topics.config import KIB, MIB, Settings
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.formats.api.diff_body import DeleteBody, DiffBody
from topics.formats.api.queue_bodies import ClaimBody, Extend, JobsRequest, Nack, RedriveBody
from topics.formats.api.router_json import RouterConfig, RouterPatch
from topics.formats.api.topic_config import TopicConfig, TopicConfigPatch
from topics.formats.api.watch import Start, ViewOptions, WatchBody
from topics.formats.api.websocket_commands import SubscribeBody
from topics.front.admin.metrics import CAPS
from topics.front.data.watch import OPTIONS
from topics.front.error_answers import STATUS
from topics.front.limits import make_slots
from topics.front.table import ROUTES

OPENAPI: Final = json.loads((ROOT / "topics/docs/openapi.json").read_bytes())
ASYNCAPI: Final = json.loads((ROOT / "topics/docs/asyncapi.json").read_bytes())
PAGE: Final = (ROOT / "topics/docs/api.md").read_text()
DECISION: Final = "decisions/0003-message-router.md"
HEADING: Final = re.compile(r"^#{2,3} (\d+(?:\.\d+)?)[. ]", re.MULTILINE)
RFC: Final = re.compile(r"RFC \d+(?:(?:,| and| to)? §[\d.]*\d)+")
CITED: Final = re.compile(r"§(\d+(?:\.\d+)*)")
FOLDERS: Final = ("topics", "tests", "workers", "deploy", ".github")
SUFFIXES: Final = {".py", ".md", ".json", ".js", ".mjs", ".txt", ".html"}
ALIASES: Final = {"/", "/healthz", "/readyz", "/metrics"}  # other names of paths below /v0
UNITS: Final = {"KiB": KIB, "MiB": MIB}


def section(number: str) -> str:
    """Return the text of a section, without its subsections if it has any."""
    found = re.search(rf"^#+ {re.escape(number)}\.? .*?(?=^##|\Z)", PAGE, re.M | re.S)
    assert found is not None, number
    return found[0]


def tables(text: str) -> Iterator[list[list[str]]]:
    """Yield the rows of each table in a text, each as its cells."""
    for found in re.finditer(r"^\|.*(?:\n\|.*)+", text, re.MULTILINE):
        lines = [line for line in found[0].splitlines() if not set(line) <= set("|- ")]
        yield [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]


def rows(text: str) -> list[list[str]]:
    """Return the rows of all tables in a text."""
    return [*itertools.chain.from_iterable(tables(text))]


def codes(cell: str) -> list[str]:
    """Return the texts in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


# Routes


def is_of_console(path: str) -> bool:
    return path.startswith("/console/")  # the page names their folder


def test_the_table_of_routes_equals_the_routes_of_the_code() -> None:
    shown = {(row[0], codes(row[1])[0], row[3]) for row in rows(section("9")) if codes(row[1])}
    served = {
        (route.method, route.path, scopes_of(route))
        for route in ROUTES
        if not is_of_console(route.path)
    }
    assert shown == served


def scopes_of(route: Any) -> str:
    """Return the cell for the scope of a route."""
    if route.is_open:
        return "none"
    if route.scope is None:
        return {"watch.open": "its key", "ws": "any key"}[route.name]
    return ", ".join(scope.name.lower() for scope in route.scope)


def test_each_section_in_the_table_of_routes_names_the_path() -> None:
    for row in rows(section("9")):
        for path in codes(row[1]):
            if row[4].startswith("§"):
                assert path.removesuffix("/") in section(row[4][1:]), row


def requests() -> Iterator[str]:
    """Yield method and path of each curl request in the blocks of the page."""
    for found in FENCE.finditer(PAGE):
        code = found["code"].replace("\\\n", " ")
        for value in re.findall(r"\bQ=(\S+)", code):
            code = code.replace("$Q", value)
        for line in re.findall(r"curl (.*)", code):
            named, url = re.search(r"-X (\w+)", line), re.search(r":4000([^\s'\"?]*)", line)
            method = named[1] if named else "POST" if " -d " in line else "GET"
            if url is not None:
                yield f"{method} {url[1]}"


@pytest.mark.parametrize(
    "route",
    [each for each in ROUTES if each.path not in ALIASES and not is_of_console(each.path)],
    ids=lambda route: f"{route.method} {route.path}",
)
def test_each_route_has_an_example_that_runs(route: Any) -> None:
    if route.name in ("ws", "watch.open"):
        assert {"ws": 'connect("ws://', "watch.open": "4000$(jq -r .stream_url"}[route.name] in PAGE
        return
    pattern = re.escape(f"{route.method} {route.path}")
    pattern = re.sub(r":(?:topic|router)", "[^/]+", pattern)
    assert [each for each in requests() if re.fullmatch(pattern, each)]


def test_each_query_parameter_is_named_in_the_section_of_its_route() -> None:
    sections = {row[2]: row for row in rows(section("9"))}
    of_path = {(row[0], codes(row[1])[0]): row[4] for row in sections.values() if codes(row[1])}
    for route in ROUTES:
        for parameter in () if is_of_console(route.path) else route.parameters:
            text = section(of_path[route.method, route.path][1:])
            assert f"`{parameter.name}`" in text, (route.path, parameter.name)


# Errors


def test_the_table_of_errors_equals_the_errors_of_the_code() -> None:
    shown = {(int(row[0]), codes(row[1])[0]) for row in rows(section("0.6")) if codes(row[1])}
    assert shown == {(status, kind.code) for kind, status in STATUS.items()}


def test_the_reasons_of_a_shard_that_is_not_ready_are_named() -> None:
    states = {"read_only", "timeout", "recovering", PEER_UNAVAILABLE, *STATE_REASONS}
    assert [reason for reason in states if f"`{reason}`" not in section("0.6")] == []


def test_the_reasons_of_tombstones_equal_those_of_the_specification() -> None:
    schema = OPENAPI["components"]["schemas"]["Tombstone"]["properties"]["reason"]
    (found,) = (each for each in tables(section("3.3")) if each[0] == ["reason", "cause"])
    assert {codes(row[0])[0] for row in found[1:]} == {*schema["enum"], "from_seq_too_old"}


# Events


@pytest.mark.parametrize(
    ("channel", "number"),
    [("watch", "7.2"), ("session", "7.2"), ("work", "10.8"), ("socket", "7.3")],
)
def test_the_events_of_a_stream_are_named(channel: str, number: str) -> None:
    names = ASYNCAPI["channels"][channel]["messages"]
    assert [name for name in names if f"`{name}`" not in section(number)] == []


# Sections


def cited_sections() -> Iterator[tuple[str, str, str]]:
    """Yield each citation in the repository: its document, its section, and the citing file."""
    files = [ROOT / "README.md"]
    files += [each for folder in FOLDERS for each in (ROOT / folder).rglob("*.*")]
    for file in files:
        if file.suffix in SUFFIXES and file.is_file() and "node_modules" not in file.parts:
            name = str(file.relative_to(ROOT))
            if name == f"topics/{DECISION}":
                continue
            text = RFC.sub("", re.sub(r"\s*\n[\s#*/]*", " ", file.read_text("utf-8", "replace")))
            is_of_rpc = "actors/rpc/" in name or name.endswith("wire/envelope.py")
            for number in CITED.findall(text):
                yield "router" if is_of_rpc else "api", number, name


def test_each_cited_section_exists() -> None:
    there = {
        "api": {*HEADING.findall(PAGE)},
        "router": {*HEADING.findall((ROOT / "topics" / DECISION).read_text())},
    }
    missing = [
        (number, file) for page, number, file in cited_sections() if number not in there[page]
    ]
    assert missing == []


def test_sections_are_in_order() -> None:
    numbers = [[*map(int, number.split("."))] for number in HEADING.findall(PAGE)]
    assert numbers == sorted(numbers)
    assert len({*map(tuple, numbers)}) == len(numbers)


# Fields of bodies


class Body(NamedTuple):
    """The fields that the structs of a body decode, and the fields with a default."""

    number: str
    fields: set[str]
    defaults: dict[str, Any]


def fields_of(*kinds: Any, prefix: str = "") -> set[str]:
    return {
        f"{prefix}{field.encode_name}" for kind in kinds for field in msgspec.structs.fields(kind)
    }


def defaults_of(*kinds: Any) -> dict[str, Any]:
    """Return the defaults of the fields that have one."""
    return {
        field.encode_name: field.default
        for kind in kinds
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT
    }


BODIES: Final = (
    Body("0.10", fields_of(TopicConfigPatch), {**defaults_of(TopicConfig), "durable": False}),
    Body(
        "2",
        fields_of(AppendBody) | fields_of(RecordIn, prefix="records[]."),
        defaults_of(AppendBody),
    ),
    Body("3.1", fields_of(DiffBody), defaults_of(DiffBody)),
    Body("5", fields_of(DeleteBody), {}),
    Body("6.1", fields_of(RouterPatch), defaults_of(RouterConfig) | {"create_dest": True}),
    Body(
        "7.1", fields_of(WatchBody) | fields_of(Start, prefix="topics[]."), defaults_of(WatchBody)
    ),
    Body("10.2", fields_of(ClaimBody), defaults_of(ClaimBody)),
    Body("10.4", fields_of(JobsRequest), {}),
    Body("10.5", fields_of(Nack) - fields_of(JobsRequest), defaults_of(Nack)),
    Body("10.6", fields_of(RedriveBody), defaults_of(RedriveBody)),
)


def request_fields(number: str) -> dict[str, list[str]]:
    """Return the rows of the table of a section's request fields, by field."""
    (found,) = (each for each in tables(section(number)) if each[0][:2] == ["field", "type"])
    return {codes(row[0])[0]: row for row in found[1:]}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.number)
def test_the_fields_of_a_body_equal_those_that_the_code_decodes(body: Body) -> None:
    shown = request_fields(body.number)
    assert shown.keys() == body.fields
    for name, row in shown.items():
        value = re.fullmatch(r"`?([\w\"]+)`?", row[2])
        # no field is null, and node is a field of the complete append
        if name in body.defaults and value is not None and value[1] not in ("none", "node"):
            assert json.loads(value[1]) == body.defaults[name], name


def test_the_fields_of_extend_and_of_subscribe_are_named() -> None:
    assert "`lease_ms`" in section("10.6")
    assert fields_of(Extend) - fields_of(JobsRequest) == {"lease_ms"}
    commands = section("7.3")
    assert [name for name in fields_of(SubscribeBody) if f"`{name}`" not in commands] == []


def test_the_options_of_a_watch_in_one_request_are_fields_of_a_session() -> None:
    assert {option.name for option in OPTIONS} <= fields_of(ViewOptions, WatchBody)


# Settings


def amount(text: str) -> int | None:
    """Return the number at the start of a cell, in bytes if it has a unit."""
    found = re.match(r"([\d,]+)(?: (KiB|MiB))?", text)
    return found and int(found[1].replace(",", "")) * UNITS.get(found[2], 1)


def test_the_limits_have_the_defaults_of_the_settings() -> None:
    settings, seen = Settings(), 0
    for row in rows(section("11")):
        for cell in row[1:3]:
            for name in re.findall(r"^`TOPICS_(\w+)`$", cell):
                shown = amount(row[3 - row.index(cell)])
                assert shown == getattr(settings, name.lower()), row
                seen += 1
    assert seen >= 17, "both tables are read"


def test_the_table_of_caps_uses_the_names_in_refusals() -> None:
    slots = make_slots(Settings(), 1)
    kinds = (slots.requests, slots.streams, slots.watch_sessions, slots.connections)
    named = {cap.name for kind in kinds for cap in (kind.in_all, kind.per_key) if cap is not None}
    (found,) = (each for each in tables(section("11")) if each[0][0] == "`detail.limit`")
    shown = {codes(row[0])[0] for row in found[1:]}
    others = {"max_topics", "max_routers", "max_total_bytes", "max_held_bytes", "max_backups"}
    assert shown == {*named, *CAPS, *others, "max_held_bytes_per_key"}
