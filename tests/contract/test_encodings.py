"""Content types and compression of bodies and answers (§0.3)."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from tests.support.api import Answer, Api, ok, refused

MIB = 2**20
ONE = b'{"records":[{"data":1}]}'


# --- content types (§0.3)

BODY_ROUTES = [("PUT", "", b'{"ttl_ms":0}'), ("POST", "", ONE), ("POST", "/diff", b"{}")]
GOOD_TYPES = [
    "application/json",
    "application/json; charset=utf-8",
    "application/json;charset=utf-8",
    'application/json; charset="utf-8"',
    "application/json; charset=UTF-8",
    "Application/JSON",
    "application/json ; charset=utf-8",
]
BAD_TYPES = [
    "",
    "text/plain",
    "application/x-www-form-urlencoded",
    "application/jsonx",
    "application/json-seq",
    "xapplication/json",
    "json",
    "*/*",
    "multipart/form-data; boundary=x",
]


@pytest.mark.parametrize("kind", GOOD_TYPES, ids=lambda kind: f"0.3 {kind}")
def test_a_json_body_is_taken(api: Api, topic: str, kind: str) -> None:
    ok(api.put(topic), 201)
    for method, tail, body in BODY_ROUTES:
        ok(api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Type": kind}))


@pytest.mark.parametrize("kind", BAD_TYPES, ids=lambda kind: f"0.3 {kind or 'none'}")
def test_another_body_is_a_415(api: Api, topic: str, kind: str) -> None:
    ok(api.put(topic), 201)
    for method, tail, body in BODY_ROUTES:
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Type": kind}),
            415,
            "unsupported_media_type",
        )
    assert api.state(topic)["head_seq"] == 0


# --- compression (§0.3)


def zipped(body: bytes, **headers: str) -> dict[str, Any]:
    return {
        "body": gzip.compress(body),
        "headers": {"Content-Encoding": "gzip", "Content-Type": "application/json", **headers},
    }


def test_gzip_bodies_are_taken(api: Api, topic: str) -> None:
    path = f"/v0/topics/{topic}"
    ok(api.call("PUT", path, **zipped(b'{"ttl_ms":123456789}')), 201)
    ok(
        api.call(
            "POST", path, **zipped(json.dumps({"records": [{"data": "x" * 100_000}]}).encode())
        )
    )
    assert (
        ok(api.call("POST", f"{path}/diff", **zipped(b'{"from_seq":0}')))["records"][0]["data"]
        == "x" * 100_000
    )
    assert api.state(topic)["config"]["ttl_ms"] == 123456789


@pytest.mark.parametrize("coding", ["identity", "GZIP"], ids=lambda coding: f"0.3 {coding}")
def test_other_spellings_of_a_coding(api: Api, topic: str, coding: str) -> None:
    body = ONE if coding == "identity" else gzip.compress(ONE)
    ok(api.call("POST", f"/v0/topics/{topic}", body, {"Content-Encoding": coding}), 201)


CORRUPT = [
    ("not gzip", b"hello"),
    ("the plain body", ONE),
    ("zlib", zlib.compress(ONE)),
    ("cut", gzip.compress(ONE)[:-9]),
    ("head only", gzip.compress(ONE)[:10]),
    ("without checksum", gzip.compress(ONE)[:-8]),
    ("wrong checksum", gzip.compress(ONE)[:-8] + b"\x00\x01\x02\x03" + gzip.compress(ONE)[-4:]),
    ("wrong length", gzip.compress(ONE)[:-1] + b"\x01"),
]


@pytest.mark.parametrize(
    "body", [body for _, body in CORRUPT], ids=[f"0.3 {name}" for name, _ in CORRUPT]
)
def test_a_corrupt_gzip_body_is_a_400(api: Api, topic: str, body: bytes) -> None:
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", body, {"Content-Encoding": "gzip"}),
            400,
            "invalid_request",
        )
    refused(api.get(topic), 404, "topic_not_found")


@pytest.mark.parametrize(
    "coding", ["br", "deflate", "zstd", "nonsense", "gzip, br"], ids=lambda coding: f"0.3 {coding}"
)
def test_an_unknown_coding_is_a_415(api: Api, topic: str, coding: str) -> None:
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", ONE, {"Content-Encoding": coding}),
            415,
            "unsupported_media_type",
        )


def test_a_body_that_grows_beyond_64_mib_is_a_413(api: Api, topic: str) -> None:
    bomb = gzip.compress(b'{"records":[{"data":1}]' + b" " * (64 * MIB) + b"}", compresslevel=1)
    assert len(bomb) < MIB
    for method, tail in (("POST", ""), ("PUT", ""), ("POST", "/diff")):
        refused(
            api.call(method, f"/v0/topics/{topic}{tail}", bomb, {"Content-Encoding": "gzip"}),
            413,
            "payload_too_large",
        )
    refused(api.get(topic), 404, "topic_not_found")


def plain(answer: Answer) -> Answer:
    """The answer with its gzip coding undone."""
    if answer.headers.get("content-encoding") != "gzip":
        return answer
    return Answer(answer.status, answer.headers, gzip.decompress(answer.body))


@pytest.mark.parametrize(
    "accept", ["gzip", "GZIP", "deflate, gzip;q=0.5", "*"], ids=lambda accept: f"0.3 {accept}"
)
def test_large_answers_are_zipped_on_request(api: Api, topic: str, accept: str) -> None:
    ok(api.append(topic, *["x" * 1000] * 100), 201)
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": accept})
    if accept != "*":
        assert answer.headers.get("content-encoding") == "gzip"
        assert len(answer.body) < 20_000
    assert ok(plain(answer))["records"] == ok(api.diff(topic))["records"]


@pytest.mark.parametrize(
    "accept",
    ["", "identity", "br", "gzip;q=0", "gzip;q=0.0, identity"],
    ids=lambda accept: f"0.3 {accept}",
)
def test_answers_are_plain_without_the_wish(api: Api, topic: str, accept: str) -> None:
    ok(api.append(topic, *["x" * 1000] * 100), 201)
    answer = api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": accept})
    assert "content-encoding" not in answer.headers
    assert len(ok(answer)["records"]) == 100


def test_every_answer_can_be_read_with_gzip_on(api: Api, topic: str) -> None:
    wish = {"Accept-Encoding": "gzip"}
    path = f"/v0/topics/{topic}"
    ok(plain(api.call("PUT", path, b"{}", wish)), 201)
    ok(plain(api.call("POST", path, ONE, wish)))
    ok(plain(api.call("POST", f"{path}/diff", b"{}", wish)))
    ok(plain(api.call("GET", path, None, wish)))
    ok(plain(api.call("GET", "/v0/topics", None, wish)))
    refused(plain(api.call("GET", "/v0/nope", None, wish)), 404, "not_found")
    refused(plain(api.call("POST", path, b"{", wish)), 400, "invalid_request")
    ok(plain(api.call("DELETE", path, None, wish)))


def test_a_zipped_diff_holds_the_same_bytes(api: Api, topic: str) -> None:
    ok(
        api.call(
            "POST",
            f"/v0/topics/{topic}",
            b'{"records":[{"data":{ "b" : 1.10, "a":"\\u0041"}}]}' + b" " * 5000,
        ),
        201,
    )
    answer = plain(api.call("POST", f"/v0/topics/{topic}/diff", b"{}", {"Accept-Encoding": "gzip"}))
    assert b'"data":{ "b" : 1.10, "a":"\\u0041"}' in answer.body
