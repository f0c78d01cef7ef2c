"""Payloads are opaque (§0.3): strict JSON is returned byte for byte, anything else gets 400."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.api import Api, ok, raw_records, refused
from tests.support.server import Server

VALUES = [
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-0.0",
    b"1.10",
    b"1e5",
    b"1E400",
    b"-1E-400",
    b"0.1000000000000000055511151231257827",
    b"1234567890123456789012345678901234567890",
    b"-9999999999999999999999999999999999999999",
    b'""',
    b"[]",
    b"{}",
    b'{"b":1,"a":2,"B":3}',
    b'{"a":1,"a":2}',
    b'{"$seq":1,"$ts":2,"data":{"data":[]}}',
    b'"\\u0041\\/\\b\\f\\n\\r\\t\\"\\\\"',
    b'"\\u00e9\\u00E9"',
    b'"\\ud83d\\ude00"',
    b'"\\u0000\\u001f\\u007f"',
    '"é😀\u2028\u2029\ufeff\x7f"'.encode(),
    b'{ "a" : [ 1 ,\t2 ,\r\n 3 ] }',
    b"[1,\n  2]",
    b"[" * 60 + b"]" * 60,
    b'{"a":' * 60 + b"1" + b"}" * 60,
    b'"' + b"a" * 5000 + b'"',
    b'"}],\\"records\\":["',
]
META = [
    b"{}",
    b'{"b":1.10,"a":2}',
    b'{ "k" : [1 , 1E400] }',
    b'{"a":1,"a":2}',
    b'{"k":"\\u0041\\/"}',
    '{"é":"😀"}'.encode(),
    b'{"k":null}',
]


@pytest.mark.parametrize("meta", META, ids=lambda value: f"0.3 {value[:40]!r}")
def test_meta_is_returned_byte_for_byte(api: Api, topic: str, meta: bytes) -> None:
    ok(
        api.call("POST", f"/v0/topics/{topic}", b'{"records":[{"meta":' + meta + b',"data":1}]}'),
        201,
    )
    (stored,) = raw_records(api.diff(topic))
    assert bytes(stored.meta) == meta


def test_data_in_a_batch_is_returned_byte_for_byte(api: Api, topic: str) -> None:
    records = b",".join(b' { "data" : ' + value + b" } " for value in VALUES)
    ok(api.call("POST", f"/v0/topics/{topic}", b'\n{ "records" : [' + records + b"] }\n"), 201)
    assert [bytes(record.data) for record in raw_records(api.diff(topic))] == VALUES


LONE = [
    *(b'"\\ud800"', b'"\\udc00"', b'"\\udc00\\ud800"', b'"a\\ud83dz"', b'"\\ud83d\\u0041"'),
    b'{"\\udfff":1}',
]


@pytest.mark.parametrize("value", LONE, ids=lambda value: f"0.3 {value!r}")
def test_a_lone_surrogate_is_kept_as_sent_or_refused(api: Api, topic: str, value: bytes) -> None:
    answer = api.call("POST", f"/v0/topics/{topic}", b'{"records":[{"data":' + value + b"}]}")
    if answer.status == 400:
        refused(answer, 400, "invalid_request")
        return
    ok(answer, 201)
    assert b'"data":' + value in api.diff(topic).body


LONE_PLACES = [
    b'"tag":"\\ud800","data":1',
    b'"node":"\\ud800","data":1',
    b'"meta":{"k":"\\ud800"},"data":1',
    b'"data":1,"other":"\\ud800"',
]


@pytest.mark.parametrize("record", LONE_PLACES, ids=lambda value: f"0.3 {value!r}")
def test_a_topic_stays_readable_after_a_lone_surrogate(api: Api, topic: str, record: bytes) -> None:
    answer = api.call("POST", f"/v0/topics/{topic}", b'{"records":[{' + record + b"}]}")
    assert answer.status in (201, 400), str(answer)
    ok(api.append(topic, "after"), 200 if answer.status == 201 else 201)
    last = raw_records(api.diff(topic, include_tags=True))[-1]
    assert bytes(last.data) == b'"after"'


BROKEN_UTF8 = [
    *(b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xc3", b"\xf5\x80\x80\x80", b"\xe2\x82", b"\x80"),
    b"\xf0\x80\x80\x80",
]
UTF8_PLACES = [
    *(b'{"records":[{"data":"%s"}]}', b'{"records":[{"data":{"%s":1}}]}'),
    *(b'{"records":[{"data":1,"meta":{"k":"%s"}}]}', b'{"records":[{"data":1,"tag":"%s"}]}'),
    *(b'{"records":[{"data":1,"node":"%s"}]}', b'{"records":[{"data":1}],"idempotency_key":"%s"}'),
    b'{"records":[{"data":1}],"unknown":"%s"}',
]


@pytest.mark.parametrize("place", UTF8_PLACES, ids=lambda value: f"0.3 {value.decode()}")
def test_invalid_utf8_gets_400(api: Api, topic: str, place: bytes) -> None:
    for broken in BROKEN_UTF8:
        refused(
            api.call("POST", f"/v0/topics/{topic}", place.replace(b"%s", broken)),
            400,
            "invalid_request",
        )
    refused(api.get(topic), 404, "topic_not_found")


NOT_JSON = [
    *(b"NaN", b"Infinity", b"-Infinity", b"nan", b"+1", b"01", b"-", b"1.", b".5", b"1e", b"0x10"),
    *(b"1_000", b"tru", b"True", b"nulll", b"'x'", b'"x', b'"\\x41"', b'"\\u12G4"', b'"\\u12"'),
    *(b'"a\nb"', b'"a\tb"', b'"\x00"', b'"\x1f"', b"[1,]", b"[,1]", b"[1 2]", b"[1", b"1]"),
    *(b'{"a":1,}', b'{"a" 1}', b"{a:1}", b'{"a":1 "b":2}', b"{1:1}", b'{"a"}', b"1 // one"),
    *(b"/* one */ 1", b"1,,", b""),
]
JSON_PLACES = [
    b'{"records":[{"data":%s}]}',
    b'{"records":[{"data":1,"meta":{"k":%s}}]}',
    b'{"records":[{"data":[0,{"k":%s}]}]}',
    b'{"records":[{"data":1}],"unknown":%s}',
]


@pytest.mark.parametrize("value", NOT_JSON, ids=lambda value: f"0.3 {value!r}")
def test_a_payload_that_is_not_strict_json_gets_400(api: Api, topic: str, value: bytes) -> None:
    for place in JSON_PLACES:
        refused(
            api.call("POST", f"/v0/topics/{topic}", place.replace(b"%s", value)),
            400,
            "invalid_request",
        )
    refused(api.get(topic), 404, "topic_not_found")


DEPTH = 100_000
SHORT_DEPTH = 20_000
DEEP: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda depth: b"[" * depth + b"]" * depth,
    "objects": lambda depth: b'{"a":' * depth + b"1" + b"}" * depth,
    "mixed": lambda depth: b'[{"a":' * (depth // 2) + b"1" + b"}]" * (depth // 2),
    "unclosed": lambda depth: b"[" * depth,
}
DEEP_PLACES = [
    ("POST", "", b'{"records":[{"data":%s}]}'),
    ("POST", "", b'{"records":[{"data":1,"meta":{"a":%s}}]}'),
    ("POST", "", b'{"records":[{"data":1,"unknown":%s}]}'),
    ("POST", "", b'{"records":[{"data":1}],"config":{"unknown":%s}}'),
    ("POST", "", b'{"records":%s}'),
    ("POST", "", b"%s"),
    ("POST", "/diff", b'{"unknown":%s}'),
    ("POST", "/diff", b'{"node":%s}'),
    ("PUT", "", b'{"unknown":%s}'),
    ("PUT", "", b"%s"),
]


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize(
    ("method", "path", "place"), DEEP_PLACES, ids=lambda value: f"0.3 {value!r}"
)
def test_deep_nesting_gets_400_and_does_not_crash_the_server(
    server: Server,
    api: Api,
    topic: str,
    method: str,
    path: str,
    place: bytes,
    deep: Callable[[int], bytes],
) -> None:
    children = server.roles()
    is_append = (method, path) == ("POST", "")  # bodies of other requests may have up to 128 KiB
    body = place.replace(b"%s", deep(DEPTH if is_append else SHORT_DEPTH))
    refused(
        api.call(method, f"/v0/topics/{topic}{path}", body),
        400,
        "invalid_request",
        "record_too_large",
    )
    ok(api.append(topic, 1), 201)
    assert server.roles() == children


def test_ts_never_decreases(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    for size in (1, 5, 1, 100, 1, 1, 1):
        ok(api.append(topic, *range(size)))
    stamps = [record["$ts"] for record in api.read(topic)]
    assert stamps == sorted(stamps)
    assert len(stamps) == 110
