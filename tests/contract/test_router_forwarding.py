"""Copies of a router (§6): their first seq, their order and their fields."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.contract.deleting import TAGS, erase, fill
from tests.contract.test_verbatim import META, VALUES
from tests.support.api import Api, data, ok, raw_records
from tests.support.copies import (
    CLASSES,
    arrived,
    drop,
    forwarded,
    kept,
    lag,
    passed,
    route,
    shown,
    untouched,
)
from tests.support.queues import until
from tests.support.routers import put
from tests.support.sse import seqs

Ends = tuple[str, str]


def given(api: Api, topic: str, *records: dict[str, Any], **fields: Any) -> None:
    """Append these records in one write to an existing topic."""
    ok(api.append(topic, records=[{"data": 0, **record} for record in records], **fields))


# --- the first record


def test_a_new_router_starts_at_the_head_of_its_source(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.append(source, "old", "older"), 201)
    name = route(api, source, dest)
    assert shown(api, name)["lag_records"] == shown(api, name)["lag_ms"] == 0
    ok(api.append(source, "new"))
    arrived(api, dest, "new")
    assert forwarded(api, name) == 1


def test_a_deleted_router_copies_no_further_records(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    before = arrived(api, dest, "a")
    assert drop(api, name)
    assert not drop(api, name)
    ok(api.append(source, "b"))
    again = route(api, source, dest)
    ok(api.append(source, "c"))
    assert arrived(api, dest, "a", "c")[:1] == before, "existing copies have changed"
    assert forwarded(api, again) == 1, "counted since its creation"


def test_records_of_a_repeated_key_are_copied_once(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    for _ in range(3):
        ok(api.append(source, "a", "b", idempotency_key="k"))
    ok(api.append(source, "c"))
    arrived(api, dest, "a", "b", "c")
    assert forwarded(api, name) == 3
    assert not ok(api.append(dest, "direct", idempotency_key="k"))["deduped"], "keys were copied"


def test_two_routers_between_the_same_topics_copy_everything_twice(api: Api, ends: Ends) -> None:
    source, dest = ends
    names = [route(api, source, dest, f"{source}.r{number}") for number in (1, 2)]
    for number in range(10):
        ok(api.append(source, number))
    passed(api, *names)
    found = data(kept(api, dest))
    assert sorted(found) == sorted([*range(10)] * 2)
    assert [forwarded(api, name) for name in names] == [10, 10]


# --- the content of copies


def test_a_copy_has_its_own_seq_and_ts(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.append(dest, "direct"), 201)
    route(api, source, dest)
    ok(api.append(source, "a", "b", "c"))
    ok(api.append(source, "d"))
    found = arrived(api, dest, "direct", "a", "b", "c", "d")
    assert seqs(found) == [1, 2, 3, 4, 5]
    times = [record["$ts"] for record in found]
    assert times == sorted(times)
    assert all(
        copy["$ts"] >= record["$ts"]
        for copy, record in zip(found[1:], kept(api, source), strict=True)
    )
    assert ok(api.append(dest, "more"))["seqs"] == [6]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_data_is_copied_byte_for_byte(api: Api, ends: Ends, guarantee: str) -> None:
    source, dest = ends
    route(api, source, dest, guarantee=guarantee)
    records = b",".join(b' { "data" : ' + value + b" } " for value in VALUES)
    ok(api.call("POST", f"/v0/topics/{source}", b'{"records":[' + records + b"]}"))
    until(lambda: len(kept(api, dest)), lambda count: count == len(VALUES))
    assert [bytes(record.data) for record in raw_records(api.diff(dest))] == VALUES


def test_meta_is_copied_byte_for_byte(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest)
    records = b",".join(b'{"data":0, "meta": ' + value + b" }" for value in META)
    ok(api.call("POST", f"/v0/topics/{source}", b'{"records":[' + records + b"]}"))
    until(lambda: len(kept(api, dest)), lambda count: count == len(META))
    assert [bytes(record.meta) for record in raw_records(api.diff(dest))] == META


MIXED: list[dict[str, Any]] = [
    {"data": 1},
    {"data": 2, "node": "n"},
    {"data": 3, "tag": "t"},
    {"data": 4, "node": 'say "n"\\ \x00é😀', "tag": 'say "t"\\ \x00é😀'},
    {"data": 5, "meta": {"m": 1}},
    {"data": {"$node": "x", "$tag": "y"}, "node": "n", "tag": "t", "meta": {"$tag": "z"}},
]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("preserve_node", [True, False], ids=["node", "no node"])
@pytest.mark.parametrize("preserve_tag", [True, False], ids=["tag", "no tag"])
def test_node_and_tag_are_preserved_or_removed_as_configured(
    api: Api, ends: Ends, preserve_node: bool, preserve_tag: bool, guarantee: str
) -> None:
    source, dest = ends
    route(
        *(api, source, dest),
        preserve_node=preserve_node,
        preserve_tag=preserve_tag,
        guarantee=guarantee,
    )
    given(api, source, *MIXED)
    given(api, source, {"data": "batch"}, {"data": "own", "node": "own"}, node="of the batch")
    expected = [untouched(record) for record in kept(api, source)]
    assert expected[-2]["$node"] == "of the batch"
    for record in expected:
        for name, is_kept in (("$node", preserve_node), ("$tag", preserve_tag)):
            if not is_kept:
                record.pop(name, None)
    found = arrived(api, dest, *data(expected))
    if guarantee == "exactly_once":
        for record in found:
            del record["meta"]["_topics_router"]
            if not record["meta"]:
                del record["meta"]
    assert [untouched(record) for record in found] == expected


# --- filters

FILTERS: list[tuple[Any, Any, list[int]]] = [
    (["tag", "Eq", "a"], ["tag", "Eq", "a"], [1, 5, 10]),
    ("a", ["tag", "Eq", "a"], [1, 5, 10]),
    (["tag", "Glob", "a*"], ["tag", "Glob", "a*"], [1, 4, 5, 8, 10]),
    (["tag", "Glob", "ab*"], ["tag", "Glob", "ab*"], [4, 8]),
    (["tag", "Glob", "*"], ["tag", "Glob", "*"], [1, 2, 4, 5, 7, 8, 9, 10]),
    ("a*", ["tag", "Eq", "a*"], []),
    (["tag", "Eq", "none"], ["tag", "Eq", "none"], []),
    (None, None, [*range(1, 11)]),
]


@pytest.mark.parametrize(("given_filter", "echo", "expected"), FILTERS, ids=map(str, FILTERS))
def test_a_filter_selects_records_by_tag(
    api: Api, ends: Ends, given_filter: Any, echo: Any, expected: list[int]
) -> None:
    source, dest = ends
    name = f"{source}->{dest}"
    body = ok(put(api, name, source, dest, filter=given_filter), 201)
    assert body["filter"] == echo == shown(api, name)["filter"]
    fill(api, source, TAGS)
    passed(api, name)
    assert data(kept(api, dest)) == expected
    assert forwarded(api, name) == len(expected), "skipped records were counted"
    for number, tag in enumerate(TAGS, 11):
        given(api, source, {"data": number, **({} if tag is None else {"tag": tag})})
    passed(api, name)
    assert data(kept(api, dest)) == [*expected, *(number + 10 for number in expected)]


# --- order and size


def test_copies_have_the_order_of_the_source(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    rng = random.Random(1)
    numbers = iter(range(400))
    while batch := [number for number, _ in zip(numbers, range(rng.randint(1, 9)), strict=False)]:
        ok(api.append(source, *batch))
    found = arrived(api, dest, *data(kept(api, source)))
    assert seqs(found) == [*range(1, len(found) + 1)]
    assert forwarded(api, name) == len(found)


def test_copies_and_direct_writes_share_the_seqs_of_the_dest(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest)
    for number in range(50):
        ok(api.append(source, number))
        ok(api.append(dest, f"direct {number}"))
    found = data(until(lambda: kept(api, dest), lambda found: len(found) == 100))
    assert [each for each in found if isinstance(each, int)] == [*range(50)]
    assert [each for each in found if isinstance(each, str)] == [f"direct {n}" for n in range(50)]


@pytest.mark.slow
def test_the_largest_batch_is_copied(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    for first in (0, 10_000):
        ok(api.append(source, *range(first, first + 10_000)))
    found = arrived(api, dest, *range(20_000))
    assert seqs(found) == [*range(1, 20_001)]
    assert forwarded(api, name) == 20_000


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_a_streamed_append_is_copied(api: Api, ends: Ends, guarantee: str) -> None:
    """A body above 4 MiB is written in runs into a blob file."""
    source, dest = ends
    route(api, source, dest, guarantee=guarantee)
    large = [f"{number}" + "x" * 900_000 for number in range(7)]
    ok(api.append(source, *large))
    ok(api.append(source, "after"))
    ok(api.append(source, *large[:5], *range(3000)))
    found = arrived(api, dest, *large, "after", *large[:5], *range(3000))
    assert seqs(found) == [*range(1, len(found) + 1)]


# --- deletes


def test_deletes_in_the_source_do_not_affect_copies(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest)
    fill(api, source, TAGS)
    arrived(api, dest, *range(1, 11))
    assert ok(erase(api, source, {"match": ["tag", "Glob", "*"]}))["deleted"] == 8
    assert ok(erase(api, source, {"before_seq": 11}))["deleted"] == 2
    ok(api.append(source, "after"))
    arrived(api, dest, *range(1, 11), "after")
    assert data(kept(api, source)) == ["after"]


def test_deletes_in_the_dest_do_not_affect_the_source(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    fill(api, source, TAGS)
    arrived(api, dest, *range(1, 11))
    assert ok(erase(api, dest, {"match": "a"}))["deleted"] == 3
    assert ok(erase(api, dest, {"before_seq": 4}))["deleted"] == 2
    arrived(api, dest, 4, 6, 7, 8, 9)
    given(api, source, {"data": 11, "tag": "a"})
    found = arrived(api, dest, 4, 6, 7, 8, 9, 11)
    assert seqs(found) == [4, 6, 7, 8, 9, 11]
    assert ok(api.diff(dest, from_seq=0))["tombstone"] is None, "a delete was reported as a loss"
    assert data(kept(api, source)) == [*range(1, 12)]
    assert forwarded(api, name) == 11


# --- durability classes


@pytest.mark.parametrize("to", CLASSES, ids=lambda value: f"to {value}")
@pytest.mark.parametrize("of", CLASSES, ids=lambda value: f"of {value}")
def test_records_are_copied_between_any_two_durability_classes(
    api: Api, ends: Ends, of: str, to: str
) -> None:
    source, dest = ends
    ok(api.put(source, {"durability": of}), 201)
    ok(api.put(dest, {"durability": to}), 201)
    name = route(api, source, dest)
    given(api, source, *MIXED)
    given(api, source, {"data": "single", "tag": "t", "node": "n"})
    expected = kept(api, source)
    found = arrived(api, dest, *data(expected))
    assert [*map(untouched, found)] == [*map(untouched, expected)]
    assert ok(erase(api, dest, {"match": "t"}))["deleted"] == 3
    assert (forwarded(api, name), lag(api, name)) == (7, 0)
    untagged = [record["data"] for record in expected if record.get("$tag") != "t"]
    ok(api.put(dest, {"durability": of}))
    ok(api.put(source, {"durability": to}))
    ok(api.append(source, "after"))
    assert arrived(api, dest, *untagged, "after")[-1]["$seq"] == 8
