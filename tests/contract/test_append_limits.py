"""The limits of an append (§2), each at its edge and one above.

They count UTF-8 bytes, but for the number of keys.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, ok, refused

KIB = 1024
MIB = 1024 * KIB


E_ACUTE = "é"
STRINGS: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("tag 256", {"tag": "x" * 256}, {}, True),
    ("tag 257", {"tag": "x" * 257}, {}, False),
    ("tag 128 é", {"tag": E_ACUTE * 128}, {}, True),
    ("tag 128 é and 1", {"tag": E_ACUTE * 128 + "x"}, {}, False),
    ("tag 129 é", {"tag": E_ACUTE * 129}, {}, False),
    ("tag 64 emoji", {"tag": "😀" * 64}, {}, True),
    ("tag 65 emoji", {"tag": "😀" * 65}, {}, False),
    ("node 128", {"node": "x" * 128}, {}, True),
    ("node 129", {"node": "x" * 129}, {}, False),
    ("node 64 é", {"node": E_ACUTE * 64}, {}, True),
    ("node 65 é", {"node": E_ACUTE * 65}, {}, False),
    ("batch node 128", {}, {"node": "x" * 128}, True),
    ("batch node 129", {}, {"node": "x" * 129}, False),
    ("batch node 64 é", {}, {"node": E_ACUTE * 64}, True),
    ("batch node 65 é", {}, {"node": E_ACUTE * 65}, False),
    ("key 256", {}, {"idempotency_key": "x" * 256}, True),
    ("key 257", {}, {"idempotency_key": "x" * 257}, False),
    ("key 256 é", {}, {"idempotency_key": E_ACUTE * 256}, True),
    ("key 257 é", {}, {"idempotency_key": E_ACUTE * 257}, False),
    ("key 256 emoji", {}, {"idempotency_key": "😀" * 256}, True),
]


@pytest.mark.parametrize("escaped", [False, True], ids=["raw", "escaped"])
@pytest.mark.parametrize(
    ("record", "fields", "fits"),
    [row[1:] for row in STRINGS],
    ids=[f"2 {row[0]}" for row in STRINGS],
)
def test_string_limits(
    api: Api, topic: str, record: dict[str, Any], fields: dict[str, Any], fits: bool, escaped: bool
) -> None:
    body = json.dumps({"records": [{"data": 1, **record}], **fields}, ensure_ascii=escaped).encode()
    answer = api.call("POST", f"/v0/topics/{topic}", body)
    if not fits:
        refused(answer, 400, "invalid_request")
        refused(api.get(topic), 404, "topic_not_found")
        return
    ok(answer, 201)
    (stored,) = api.read(topic, include_tags=True)
    assert stored.get("$tag") == record.get("tag")
    assert stored.get("$node") == record.get("node", fields.get("node"))


def test_a_batch_holds_10000_records(api: Api, topic: str) -> None:
    body = ok(api.append(topic, *range(10_000)), 201)
    assert body["seqs"] == list(range(1, 10_001))
    refused(api.append(topic, *range(10_001)), 400, "batch_too_large")
    assert api.state(topic)["head_seq"] == 10_000
    assert [record["data"] for record in api.read(topic)] == list(range(10_000))


def record(data: str, meta: str | None = None) -> bytes:
    """One record's body from raw JSON."""
    tail = "" if meta is None else f',"meta":{meta}'
    return f'{{"records":[{{"data":{data}{tail}}}]}}'.encode()


def quoted(size: int, letter: str = "x") -> str:
    """A JSON string of ``size`` bytes, its quotes included."""
    width = len(letter.encode())
    assert (size - 2) % width == 0
    return '"' + letter * ((size - 2) // width) + '"'


META = '{"k":"v"}'
SIZES = [
    ("data 1 MiB", record(quoted(MIB)), True),
    ("data 1 MiB and 1", record(quoted(MIB + 1)), False),
    ("data of é, 1 MiB", record(quoted(MIB, E_ACUTE)), True),
    ("data of é, 1 MiB and 2", record(quoted(MIB + 2, E_ACUTE)), False),
    ("data and meta 1 MiB", record(quoted(MIB - len(META)), META), True),
    ("data and meta 1 MiB and 1", record(quoted(MIB - len(META) + 1), META), False),
    ("meta 16 KiB", record("1", f'{{"k":{quoted(16 * KIB - 6)}}}'), True),
    ("meta 16 KiB and 1", record("1", f'{{"k":{quoted(16 * KIB - 5)}}}'), False),
    ("meta of é, 16 KiB", record("1", f'{{"k":{quoted(16 * KIB - 6, E_ACUTE)}}}'), True),
    ("meta of é, 16 KiB and 2", record("1", f'{{"k":{quoted(16 * KIB - 4, E_ACUTE)}}}'), False),
]


@pytest.mark.parametrize(
    ("body", "fits"), [row[1:] for row in SIZES], ids=[f"2 {row[0]}" for row in SIZES]
)
def test_record_and_meta_sizes(api: Api, topic: str, body: bytes, fits: bool) -> None:
    answer = api.call("POST", f"/v0/topics/{topic}", body)
    if not fits:
        refused(answer, 400, "record_too_large")
        refused(api.get(topic), 404, "topic_not_found")
        return
    ok(answer, 201)
    sent = json.loads(body)["records"][0]
    (stored,) = api.read(topic)
    assert stored["data"] == sent["data"]
    assert stored.get("meta") == sent.get("meta")


def test_the_sizes_in_the_table_are_what_they_say() -> None:
    sizes = {name: len(body) - len(record("", "")) for name, body, _ in SIZES if "meta" in name}
    assert sizes["data and meta 1 MiB"] == MIB
    assert sizes["meta 16 KiB"] == 16 * KIB + 1  # the data is one byte
    assert sizes["meta of é, 16 KiB"] == 16 * KIB + 1


KEYS = [
    ("64 keys", {f"k{number}": number for number in range(64)}, True),
    ("65 keys", {f"k{number}": number for number in range(65)}, False),
    ("nested keys do not count", {"a": {f"k{number}": 1 for number in range(100)}}, True),
]


@pytest.mark.parametrize(
    ("meta", "fits"), [row[1:] for row in KEYS], ids=[f"2 {row[0]}" for row in KEYS]
)
def test_meta_holds_64_keys(api: Api, topic: str, meta: dict[str, Any], fits: bool) -> None:
    answer = api.append(topic, records=[{"data": 1, "meta": meta}])
    if fits:
        ok(answer, 201)
        assert api.read(topic)[0]["meta"] == meta
    else:
        refused(answer, 400, "record_too_large", "invalid_request")


def test_large_records_fill_a_large_body(api: Api, topic: str) -> None:
    data = ["x" * (MIB - 2)] * 8
    assert ok(api.append(topic, *data), 201)["count"] == 8
    assert len(api.read(topic, max_batch_bytes=8 * MIB)) == 8
