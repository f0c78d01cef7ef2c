"""Settings of the environment: limits, keys (§0.2), and invalid values, which prevent a start."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.refusal_rows import HTTP, ROUTES
from tests.support.api import Api, Wire, ok, refused, request
from tests.support.server import Server

pytestmark = pytest.mark.slow

SMALL = {
    "max_batch_records": 5,
    "max_record_bytes": 100,
    "max_body_bytes": 1000,
    "max_meta_bytes": 20,
    "max_tag_bytes": 4,
    "max_node_bytes": 3,
    "max_limit": 7,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("small") / "data", **SMALL) as server:
        yield server


@pytest.fixture
def small_api(small: Server) -> Iterator[Api]:
    with Api(small.address) as api:
        yield api


def padded(size: int) -> bytes:
    body = b'{"records":[{"data":1}]}'
    return body + b" " * (size - len(body))


@pytest.mark.parametrize(
    ("size", "fits"), [(1000, True), (1001, False), (5000, False)], ids=lambda value: f"2 {value}"
)
@pytest.mark.parametrize("framing", ["length", "chunked", "gzip"])
def test_the_body_limit_applies_before_and_after_decompression(
    small: Server, small_api: Api, topic: str, framing: str, size: int, fits: bool
) -> None:
    path = f"/v0/topics/{topic}"
    body = padded(size)
    if framing == "chunked":
        with Wire(small.address) as wire:
            head = request(
                "POST", path, None, "Content-Type: application/json", "Transfer-Encoding: chunked"
            )
            wire.send(head + b"%x\r\n%s\r\n0\r\n\r\n" % (size, body))
            answer = wire.answer()
    elif framing == "gzip":
        answer = small_api.call("POST", path, gzip.compress(body), {"Content-Encoding": "gzip"})
    else:
        answer = small_api.call("POST", path, body)
    if fits:
        ok(answer, 201)
    else:
        refused(answer, 413, "payload_too_large")
        refused(small_api.get(topic), 404, "topic_not_found")


@pytest.mark.parametrize("name", HTTP)
def test_the_body_limit_applies_to_every_route(small_api: Api, name: str) -> None:
    method, path, fields = ROUTES[name]
    body = json.dumps(fields).encode()
    assert small_api.call(method, path, body.ljust(1000)).status != 413
    refused(small_api.call(method, path, body.ljust(1001)), 413, "payload_too_large")


EDGES: list[tuple[str, list[dict[str, Any]], str | None]] = [
    ("5 records", [{"data": 1}] * 5, None),
    ("6 records", [{"data": 1}] * 6, "batch_too_large"),
    ("100 bytes", [{"data": "x" * 98}], None),
    ("101 bytes", [{"data": "x" * 99}], "record_too_large"),
    ("meta 20 bytes", [{"data": 1, "meta": {"k": "x" * 12}}], None),
    ("meta 21 bytes", [{"data": 1, "meta": {"k": "x" * 13}}], "record_too_large"),
    ("tag 4 bytes", [{"data": 1, "tag": "éé"}], None),
    ("tag 5 bytes", [{"data": 1, "tag": "ééx"}], "invalid_request"),
    ("node 3 bytes", [{"data": 1, "node": "éx"}], None),
    ("node 4 bytes", [{"data": 1, "node": "éé"}], "invalid_request"),
]


@pytest.mark.parametrize(
    ("records", "code"), [row[1:] for row in EDGES], ids=[f"2 {row[0]}" for row in EDGES]
)
def test_every_limit_may_be_changed(
    small_api: Api, topic: str, records: list[dict[str, Any]], code: str | None
) -> None:
    body = json.dumps({"records": records}, separators=(",", ":"), ensure_ascii=False).encode()
    answer = small_api.call("POST", f"/v0/topics/{topic}", body)
    if code is None:
        ok(answer, 201)
    else:
        refused(answer, 400, code)


def test_the_read_limit_may_be_changed(small_api: Api, topic: str) -> None:
    for _ in range(2):
        small_api.append(topic, *range(5))
    for fields in ({}, {"limit": 0}, {"limit": 8}, {"limit": 1000}):
        assert len(ok(small_api.diff(topic, **fields))["records"]) == 7


BAD_SETTINGS = [{"max_limit": "abc"}, {"api_keys": "secret:nonsense"}, {"host": "0.0.0.0"}]


@pytest.mark.slow
@pytest.mark.parametrize("env", BAD_SETTINGS, ids=lambda env: f"0.2 {env}")
def test_an_invalid_setting_prevents_the_start(tmp_path: Path, env: dict[str, str]) -> None:
    server = Server(tmp_path / "data", **env)
    server.spawn()
    try:
        assert server.wait_exit(20) not in (0, -9)
    finally:
        server.kill()
    (name, value) = next(iter(env.items()))
    assert ("TOPICS_" if name == "host" else f"TOPICS_{name.upper()}") in server.logged
    assert "Traceback" not in server.logged
    if name == "api_keys":
        assert value.partition(":")[0] not in server.logged


@pytest.mark.slow
def test_all_invalid_settings_are_reported_together(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", max_limit="abc", max_tag_bytes="x", max_body_bytes="-")
    server.spawn()
    try:
        assert server.wait_exit(20) != 0
    finally:
        server.kill()
    for name in ("TOPICS_MAX_LIMIT", "TOPICS_MAX_TAG_BYTES", "TOPICS_MAX_BODY_BYTES"):
        assert name in server.logged


@pytest.mark.parametrize(("cap", "is_logged"), [(100, False), (16_385, True), (0, False)])
def test_a_cap_of_streams_that_no_process_can_reach_is_logged(
    tmp_path: Path, cap: int, is_logged: bool
) -> None:
    with Server(tmp_path / "data", shards=1, max_sse_connections=cap) as server:
        assert server.log is not None
        logged = [line for line in server.log.events() if "max_sse_connections" in line]
        assert [line["max_sse_connections"] for line in logged] == [cap] * is_logged
        assert all(line["level"] == "warning" for line in logged)
        assert all(line["max_connections"] <= 16_384 for line in logged)


# --- keys (§0.2)

KEYS = "full-key,tenant-key::t42:|shared."


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("guarded") / "data", api_keys=KEYS, shards=2) as server:
        with Api(server.address, token="full-key") as api:
            for name in ("t42:a", "t42:b", "t43:a", "shared.x", "other"):
                ok(api.append(name, 1), 201)
        yield server


def test_a_list_shows_only_the_prefixes_of_the_key(guarded: Server) -> None:
    with Api(guarded.address, token="tenant-key") as api:
        assert [item["topic"] for item in ok(api.listing())["topics"]] == [
            "shared.x",
            "t42:a",
            "t42:b",
        ]
        assert [item["topic"] for item in ok(api.listing(prefix="t4"))["topics"]] == [
            "t42:a",
            "t42:b",
        ]
        assert ok(api.listing(prefix="other"))["topics"] == []
        first = ok(api.listing(page_size=2))
        rest = ok(api.listing(page_size=2, cursor=first["next_cursor"]))
        assert [item["topic"] for item in rest["topics"]] == ["t42:b"]
        assert "next_cursor" not in rest
        last = ok(api.listing(page_size=3))
        assert "next_cursor" not in last


@pytest.mark.slow
def test_probes_can_be_configured_to_require_a_key(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", api_keys="probe-key:delete")
    with server:
        server.stop()
    server.env["TOPICS_PROBE_AUTH"] = "true"
    server.spawn()
    try:
        assert server.log is not None
        url = server.log.event("listening", 20)["url"]
        host, _, port = url.rpartition("//")[2].partition(":")
        with Api((host, int(port.strip("/")))) as api:
            for path in ("/v0/health", "/v0/openapi.json"):
                refused(api.call("GET", path), 401, "unauthorized")
            assert (
                api.call("GET", "/v0/health", None, {"Authorization": "Bearer probe-key"}).status
                == 200
            )
        server.stop()
    finally:
        server.kill()
