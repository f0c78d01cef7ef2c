"""Reads around deleted records, and deletes beside appends (§3.2, §3.3, §4)."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.contract.deleting import erase
from tests.contract.retained import erased, gap, page_of, seqs
from tests.support.api import Api, ok
from tests.support.model import TopicModel
from tests.support.server import Server

# --- reads around deleted records


def read_all(api: Api, topic: str, **fields: Any) -> list[int]:
    """Every seq through pages that must go on and tell of no loss."""
    found: list[int] = []
    cursor = 0
    while True:
        page = ok(api.diff(topic, from_seq=cursor, **fields))
        assert page["tombstone"] is None
        assert page["caught_up"] == (page["next_from_seq"] == page["head_seq"])
        assert page["lag"] == page["head_seq"] - page["next_from_seq"]
        found += seqs(page)
        if page["caught_up"]:
            return found
        assert page["next_from_seq"] > cursor
        cursor = page["next_from_seq"]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_pass_over_deleted_records(
    api: Api, topic: str, filled: TopicModel, limit: int
) -> None:
    erased(api, topic, match=["tag", "Glob", "a*"])
    filled.delete(match=["tag", "Glob", "a*"])
    assert read_all(api, topic, limit=limit) == list(filled.live) == [2, 3, 6, 7, 9]


def test_deleted_records_do_not_count_against_the_limit(
    api: Api, topic: str, filled: TopicModel
) -> None:
    erased(api, topic, match="b")
    assert seqs(ok(api.diff(topic, limit=3))) == [1, 3, 4]


def test_the_cursor_passes_deleted_records_at_the_end(
    api: Api, topic: str, filled: TopicModel
) -> None:
    erased(api, topic, match="a")
    page = ok(api.diff(topic, from_seq=9))
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == (
        [],
        10,
        True,
        None,
    )
    page = ok(api.diff(topic, from_seq=8, limit=1))
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == (
        [9],
        page["next_from_seq"],
        page["next_from_seq"] == 10,
    )


NODES: list[tuple[Any, list[int]]] = [
    ("x", [2, 5, 8]),
    (["x"], [2, 5, 8]),
    (["x", "y"], [5, 8]),
    (["z", "y"], [5, 7, 8]),
    ("X", [2, 5, 7, 8]),
    ([], [2, 5, 7, 8]),
]


@pytest.mark.parametrize(
    ("node", "seen"), NODES, ids=[f"4 {json.dumps(node)}" for node, _ in NODES]
)
@pytest.mark.parametrize("limit", [1, 100])
def test_the_node_filter_and_deletes_work_together(
    api: Api, topic: str, node: Any, seen: list[int], limit: int
) -> None:
    nodes = ["x", "y", "x", "y", None, "x", "x", "long", "y"]
    records = [
        {"data": number, "tag": "gone" if number in (1, 3, 4, 6, 9) else "kept"}
        | ({"node": who} if who else {})
        for number, who in enumerate(nodes, 1)
    ]
    ok(api.append(topic, records=records), 201)
    assert erased(api, topic, match="gone") == 5
    assert read_all(api, topic, node=node, limit=limit) == seen


@pytest.mark.parametrize("include_tags", [True, False])
@pytest.mark.parametrize("include_meta", [True, False])
def test_tags_and_meta_are_those_of_the_records_that_are_left(
    api: Api, topic: str, include_tags: bool, include_meta: bool
) -> None:
    records = [
        {"data": number, "tag": f"t{number}", "meta": {"m": number}, "node": f"n{number}"}
        for number in range(1, 8)
    ]
    ok(api.append(topic, records=records), 201)
    for number in (1, 4, 5):
        assert erased(api, topic, match=f"t{number}") == 1
    page = ok(api.diff(topic, include_tags=include_tags, include_meta=include_meta, node="n6"))
    assert [
        {name: value for name, value in record.items() if name != "$ts"}
        for record in page["records"]
    ] == [
        {"$seq": number, "$node": f"n{number}", "data": number}
        | ({"$tag": f"t{number}"} if include_tags else {})
        | ({"meta": {"m": number}} if include_meta else {})
        for number in (2, 3, 7)
    ]


@pytest.mark.parametrize("budget", [1, 2500, 10_000, 1 << 20])
def test_the_byte_budget_holds_between_deleted_records(api: Api, topic: str, budget: int) -> None:
    ok(
        api.append(
            topic, records=[{"data": "x" * 1000, "tag": f"t{number % 3}"} for number in range(60)]
        ),
        201,
    )
    assert erased(api, topic, match="t1") == 20
    left = [seq for seq in range(1, 61) if seq % 3 != 2]
    assert read_all(api, topic, max_batch_bytes=budget) == left
    page = ok(api.diff(topic, max_batch_bytes=budget))
    assert 1 <= len(page["records"]) <= max(1, budget // 1000)


def test_records_scanned_tells_of_what_was_delivered_at_least(
    api: Api, topic: str, filled: TopicModel
) -> None:
    erased(api, topic, match="a")
    page = ok(api.diff(topic))
    assert 7 <= page["performance"]["records_scanned"] <= 20
    assert ok(api.diff(topic, from_seq=10))["performance"]["records_scanned"] == 0


def test_a_reader_in_the_middle_of_the_gap_goes_on_silently(
    api: Api, topic: str, filled: TopicModel
) -> None:
    first = ok(api.diff(topic, limit=4))
    assert first["next_from_seq"] == 4
    erased(api, topic, before_seq=9)
    page = page_of(api, topic, 4)
    assert (gap(page), seqs(page), page["earliest_seq"]) == (None, [9, 10], 9)


# --- beside appends


def test_what_was_acknowledged_before_goes_and_what_is_sent_after_stays(
    server: Server, api: Api, topic: str
) -> None:
    ok(api.put(topic), 201)
    done = threading.Event()
    acknowledged: list[int] = []
    sent_after: set[int] = set()
    deleted = threading.Event()

    def write() -> None:
        number = 0
        with Api(server.address) as own:
            while not done.is_set():
                number += 1
                late = deleted.is_set()
                (seq,) = ok(own.append(topic, records=[{"data": late, "tag": "x"}]))["seqs"]
                acknowledged.append(seq)
                if late:
                    sent_after.add(seq)

    writers = [threading.Thread(target=write, daemon=True) for _ in range(3)]
    for writer in writers:
        writer.start()
    while len(acknowledged) < 50:
        done.wait(0.005)
    known = list(acknowledged)
    gone = ok(erase(api, topic, {"match": "x"}))
    deleted.set()
    while len(sent_after) < 20:
        done.wait(0.005)
    done.set()
    for writer in writers:
        writer.join(20)
    left = {record["$seq"] for record in api.read(topic)}
    assert left.isdisjoint(known)
    assert sent_after <= left
    # The head goes on while the delete becomes durable; what it took is all up to the head that it
    # found.
    assert sorted(left) == list(range(gone["deleted"] + 1, max(acknowledged) + 1)), (
        "a delete reaches up to one seq and no further"
    )
    assert max(known) <= gone["deleted"] <= gone["head_seq"]
