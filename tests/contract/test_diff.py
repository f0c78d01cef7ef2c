"""POST /v0/topics/:topic/diff (§3) without waiting: fields, bounds, node filter (§4), recreated
tombstone (§3.3).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api import Api, ok, refused

KIB = 1024
MIB = 1024 * KIB


def data(page: Any) -> list[Any]:
    return [record["data"] for record in page["records"]]


def cursor(page: Any) -> tuple[int, bool, int]:
    """Return the cursor fields of a page."""
    assert page["lag"] == page["head_seq"] - page["next_from_seq"]
    assert page["caught_up"] == (page["lag"] == 0)
    return page["next_from_seq"], page["caught_up"], page["lag"]


def test_a_diff_response_has_every_documented_field(api: Api, topic: str) -> None:
    ok(api.append(topic, "a", "b"), 201)
    page = ok(api.diff(topic, from_seq=1))
    assert page["records"] == [{"$seq": 2, "$ts": page["records"][0]["$ts"], "data": "b"}]
    expected = {
        "topic": topic,
        "next_from_seq": 2,
        "head_seq": 2,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }
    assert {name: page[name] for name in expected} == expected
    assert page["epoch"] == api.state(topic)["epoch"]


def test_an_empty_topic_reads_as_caught_up(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    page = ok(api.diff(topic))
    assert (page["records"], page["head_seq"], page["earliest_seq"], page["tombstone"]) == (
        [],
        0,
        1,
        None,
    )
    assert cursor(page) == (0, True, 0)


def test_an_empty_body_needs_no_content_type_and_reads_from_the_start(api: Api, topic: str) -> None:
    ok(api.append(topic, 1, 2), 201)
    page = ok(api.call("POST", f"/v0/topics/{topic}/diff", headers={"Content-Length": "0"}))
    assert data(page) == [1, 2]


def test_a_diff_never_creates_a_topic(api: Api, topic: str) -> None:
    assert refused(api.diff(topic), 404, "topic_not_found")["detail"]["topic"] == topic
    refused(api.diff(topic, wait_ms=5000), 404, "topic_not_found")
    refused(api.get(topic), 404, "topic_not_found")


@pytest.mark.parametrize(
    ("from_seq", "seen"),
    [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])],
    ids=lambda value: f"3 {value}",
)
def test_from_seq_is_exclusive(api: Api, topic: str, from_seq: int, seen: list[int]) -> None:
    ok(api.append(topic, 1, 2, 3), 201)
    page = ok(api.diff(topic, from_seq=from_seq))
    assert data(page) == seen
    assert cursor(page) == (3, True, 0)
    assert page["tombstone"] is None


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 256),
        ({"limit": 0}, 256),
        ({"limit": 1}, 1),
        ({"limit": 999}, 999),
        ({"limit": 1000}, 1000),
        ({"limit": 1001}, 1000),
        ({"limit": 2**32 - 1}, 1000),
    ],
    ids=lambda value: f"3 {value}",
)
def test_limit_is_clamped(api: Api, topic: str, fields: dict[str, Any], count: int) -> None:
    ok(api.append(topic, *range(1, 1101)), 201)
    page = ok(api.diff(topic, **fields))
    assert data(page) == list(range(1, count + 1))
    assert cursor(page) == (count, False, 1100 - count)


@pytest.mark.parametrize("include_tags", [None, False, True])
@pytest.mark.parametrize("include_meta", [None, False, True])
def test_tags_are_included_on_request_and_meta_can_be_omitted(
    api: Api, topic: str, include_tags: bool | None, include_meta: bool | None
) -> None:
    ok(api.append(topic, records=[{"data": 1, "tag": "t", "meta": {"m": 1}}, {"data": 2}]), 201)
    options = {"include_tags": include_tags, "include_meta": include_meta}
    full, bare = ok(
        api.diff(topic, **{name: value for name, value in options.items() if value is not None})
    )["records"]
    assert full.get("$tag") == ("t" if include_tags else None)
    assert full.get("meta") == ({"m": 1} if include_meta is not False else None)
    assert set(bare) == {"$seq", "$ts", "data"}
    assert set(full) == {"$seq", "$ts", "data"} | ({"$tag"} if include_tags else set()) | (
        {"meta"} if include_meta is not False else set()
    )


# --- byte budget


def payload_bytes(page: Any) -> int:
    return sum(len(json.dumps(record["data"])) for record in page["records"])


BUDGETS = [
    ("one byte still gives one record", 10, 1000, {"max_batch_bytes": 1}, 1, 1),
    ("a few records", 10, 1000, {"max_batch_bytes": 3500}, 1, 3),
    ("1 MiB by default", 6, 300 * KIB, {}, 2, 3),
    ("more on request", 6, 300 * KIB, {"max_batch_bytes": 4 * MIB}, 6, 6),
    ("at most 8 MiB", 20, 512 * KIB, {"max_batch_bytes": 64 * MIB}, 10, 16),
    ("a record above the budget comes alone", 3, 1000 * KIB, {"max_batch_bytes": 10 * KIB}, 1, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("records", "size", "fields", "least", "most"),
    [row[1:] for row in BUDGETS],
    ids=[f"11 {row[0]}" for row in BUDGETS],
)
def test_a_page_with_several_records_stays_within_the_byte_budget(
    api: Api, topic: str, records: int, size: int, fields: dict[str, Any], least: int, most: int
) -> None:
    for start in range(0, records, 5):
        count = min(5, records - start)
        ok(api.append(topic, *["x" * (size - 2)] * count), 200 if start else 201)
    page = ok(api.diff(topic, **fields))
    count = len(page["records"])
    assert least <= count <= most
    assert cursor(page) == (count, count == records, records - count)
    assert count == 1 or payload_bytes(page) <= fields.get("max_batch_bytes", MIB)
    assert len(api.read(topic, **fields)) == records


# --- node filter

NODES = ["a", "b", None, "A", "ab", "a ", "é"]
FILTERS: list[tuple[Any, list[int]]] = [
    ("a", [1, 2, 3, 4, 5, 6]),
    ("b", [0, 2, 3, 4, 5, 6]),
    ("é", [0, 1, 2, 3, 4, 5]),
    ("nobody", [0, 1, 2, 3, 4, 5, 6]),
    (["a"], [1, 2, 3, 4, 5, 6]),
    (["a", "b"], [2, 3, 4, 5, 6]),
    (["a", "a", "é"], [1, 2, 3, 4, 5]),
    ([], [0, 1, 2, 3, 4, 5, 6]),
    (["a", "b", "A", "ab", "a ", "é"], [2]),
]


@pytest.mark.parametrize(("node", "seen"), FILTERS, ids=lambda value: f"4.5 {value}")
def test_a_node_never_reads_its_own_records(
    api: Api, topic: str, node: Any, seen: list[int]
) -> None:
    records = [
        {"data": number, **({"node": name} if name is not None else {})}
        for number, name in enumerate(NODES)
    ]
    ok(api.append(topic, records=records), 201)
    page = ok(api.diff(topic, node=node))
    assert data(page) == seen
    assert cursor(page) == (7, True, 0)
    assert page["tombstone"] is None


def test_the_cursor_passes_a_nodes_own_records_up_to_the_head(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(50), node="me"), 201)
    page = ok(api.diff(topic, node="me", limit=10))
    assert page["records"] == []
    assert cursor(page) == (50, True, 0)


def test_filtered_records_do_not_count_against_the_limit(api: Api, topic: str) -> None:
    for number in range(10):
        ok(api.append(topic, number, node="me" if number % 2 else "you"), 200 if number else 201)
    page = ok(api.diff(topic, node="me", limit=3))
    assert data(page) == [0, 2, 4]
    assert page["next_from_seq"] in (5, 6)
    rest = ok(api.diff(topic, node="me", limit=3, from_seq=page["next_from_seq"]))
    assert data(rest) == [6, 8]
    assert cursor(rest) == (10, True, 0)


def test_a_topic_may_opt_out_of_node_filtering(api: Api, topic: str) -> None:
    ok(api.put(topic, {"dedupe_node": False}), 201)
    ok(api.append(topic, 1, 2, node="me"))
    assert data(ok(api.diff(topic, node="me"))) == [1, 2]
    ok(api.put(topic, {"dedupe_node": True}))
    assert data(ok(api.diff(topic, node="me"))) == []


# --- recreated


def recreated(page: Any, head: int) -> None:
    """Check that the page reports a cursor of another epoch and restarts at the first record."""
    tombstone = page["tombstone"]
    assert {
        name: tombstone[name]
        for name in ("gap_from", "gap_to", "reason", "earliest_seq", "head_seq")
    } == {
        "gap_from": 1,
        "gap_to": head,
        "reason": "recreated",
        "earliest_seq": page["earliest_seq"],
        "head_seq": head,
    }
    assert isinstance(tombstone["missed_estimate"], int)
    assert tombstone["missed_estimate"] >= 0
    assert [record["$seq"] for record in page["records"]] == list(range(1, head + 1))
    assert cursor(page) == (head, True, 0)


@pytest.mark.parametrize("head", [0, 1, 3])
def test_a_cursor_above_the_head_is_reported_as_a_recreated_topic(
    api: Api, topic: str, head: int
) -> None:
    ok(api.put(topic), 201)
    for number in range(head):
        ok(api.append(topic, number))
    recreated(ok(api.diff(topic, from_seq=head + 1)), head)
    recreated(ok(api.diff(topic, from_seq=2**64 - 1)), head)


def test_a_cursor_of_another_epoch_is_reported_as_a_recreated_topic(api: Api, topic: str) -> None:
    ok(api.append(topic, 1, 2, 3), 201)
    old = api.state(topic)["epoch"]
    ok(api.delete(topic))
    ok(api.append(topic, 4, 5, 6, 7), 201)
    new = api.state(topic)["epoch"]
    recreated(ok(api.diff(topic, from_seq=2, epoch=old)), 4)
    recreated(ok(api.diff(topic, from_seq=3, epoch=old)), 4)
    recreated(ok(api.diff(topic, from_seq=9, epoch=old)), 4)
    for fields in ({"epoch": new}, {}):
        page = ok(api.diff(topic, from_seq=2, **fields))
        assert (page["tombstone"], data(page)) == (None, [6, 7])
    assert page["epoch"] == new


def test_a_cursor_above_the_head_with_the_current_epoch_gets_no_tombstone(
    api: Api, topic: str
) -> None:
    ok(api.append(topic, 1), 201)
    page = ok(api.diff(topic, from_seq=5, epoch=api.state(topic)["epoch"]))
    assert (page["tombstone"], page["records"]) == (None, [])


def test_a_recreated_topic_is_read_in_pages_after_the_tombstone(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(5)), 201)
    page = ok(api.diff(topic, from_seq=100, limit=2))
    assert page["tombstone"]["reason"] == "recreated"
    assert (data(page), page["next_from_seq"]) == ([0, 1], 2)
    page = ok(api.diff(topic, from_seq=2, limit=2, epoch=page["epoch"]))
    assert (page["tombstone"], data(page)) == (None, [2, 3])


# --- performance


def test_every_response_reports_its_costs(api: Api, topic: str) -> None:
    append = ok(api.append(topic, 1, 2, 3), 201)["performance"]
    assert append["wal_append_ms"] >= 0
    assert append["fsync_ms"] == 0
    diff = ok(api.diff(topic))["performance"]
    assert 3 <= diff["records_scanned"] <= 10
    for answer in (api.put(topic), api.get(topic), api.listing(page_size=1), api.delete(topic)):
        assert ok(answer)["performance"]["server_total_ms"] >= 0


DURABILITY = [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)]


@pytest.mark.parametrize(("durability", "synced"), DURABILITY, ids=lambda value: f"0.10 {value}")
def test_only_the_class_fsync_waits_for_the_disk(
    api: Api, topic: str, durability: str, synced: bool
) -> None:
    ok(api.put(topic, {"durability": durability}), 201)
    for number in range(5):
        cost = ok(api.append(topic, number))["performance"]["fsync_ms"]
        assert isinstance(cost, float | int)
        assert (cost > 0) == synced
    assert data(ok(api.diff(topic))) == list(range(5))


def test_a_changed_class_applies_to_the_next_write(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    for durability, synced in [
        ("fsync", True),
        ("disk", False),
        ("ephemeral", False),
        ("fsync", True),
        ("memory", False),
    ]:
        ok(api.put(topic, {"durability": durability}))
        assert (ok(api.append(topic, 2))["performance"]["fsync_ms"] > 0) == synced
    assert len(api.read(topic)) == 6


@pytest.mark.parametrize("wait_ms", [None, 0, 1])
def test_a_diff_skips_all_filtered_records_with_any_wait_ms(
    api: Api, topic: str, wait_ms: int | None
) -> None:
    ok(api.put(topic), 201)
    for _ in range(6):
        ok(api.append(topic, *[0] * 1000, node="me"))
    options = {} if wait_ms is None else {"wait_ms": wait_ms}
    page = ok(api.diff(topic, from_seq=0, node="me", **options))
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 6000, True)
