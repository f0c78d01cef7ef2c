"""Routers in chains and cycles (§6), and the stamps of ``exactly_once``."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.test_verbatim import META
from tests.support.api import Api, data, ok, raw_records
from tests.support.copies import (
    STAMP,
    arrived,
    drop,
    forwarded,
    kept,
    lag,
    passed,
    route,
    untouched,
)
from tests.support.queues import until
from tests.support.routers import names_for, put
from tests.support.sse import seqs

HOPS = 8
SHARDS = [(0, 0, 0, 0), (0, 1, 0, 1), (1, 1, 0, 0)]


@pytest.fixture(params=SHARDS, ids=str)
def row(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[list[str]]:
    """Names of four topics that do not exist yet. At the end they are deleted."""
    names = names_for(topic, request.param)
    yield names
    for name in names:
        ok(api.delete(name))


def settled(api: Api, *names: str) -> list[int]:
    """Return ``forwarded_total`` of routers in a cycle once it stops changing."""

    def read_counts() -> list[int]:
        return [forwarded(api, name) for name in names]

    def is_done(before: list[int]) -> bool:
        return not any(lag(api, name) for name in names) and read_counts() == before

    return until(read_counts, is_done)


# --- chains and fan-out


def test_a_chain_forwards_copies_to_its_last_topic(api: Api, row: list[str]) -> None:
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    for number in range(20):
        records = [{"data": [number, each], "node": f"n{number}", "tag": "t"} for each in range(3)]
        ok(api.append(row[0], records=records))
    ok(api.append(row[1], "from here on"))
    passed(api, *names)
    first = kept(api, row[0])
    for dest in row[1:]:
        found = [record for record in kept(api, dest) if record["data"] != "from here on"]
        assert [*map(untouched, found)] == [*map(untouched, first)]
        assert seqs(kept(api, dest)) == [*range(1, 62)]
    assert [forwarded(api, name) for name in names] == [60, 61, 61]


def test_one_source_can_have_many_dests(api: Api, row: list[str]) -> None:
    source, *dests = row
    filters = [None, "even", ["tag", "Glob", "o*"]]
    names = [
        route(api, source, dest, filter=each) for dest, each in zip(dests, filters, strict=True)
    ]
    ok(
        api.append(
            source, records=[{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(9)]
        )
    )
    ok(api.append(source, "untagged"))
    passed(api, *names)
    assert [data(kept(api, dest)) for dest in dests] == [
        [*range(9), "untagged"],
        [0, 2, 4, 6, 8],
        [1, 3, 5, 7],
    ]
    assert [forwarded(api, name) for name in names] == [10, 5, 4]


# --- hops


def test_a_chain_without_a_cycle_forwards_over_any_length(api: Api, topic: str) -> None:
    row = names_for(topic, [0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0])
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    ok(api.append(row[0], "a"))
    passed(api, *names)
    assert [data(kept(api, name)) for name in row] == [["a"]] * len(row)
    ok(api.append(row[1], "b"))
    passed(api, *names)
    assert data(kept(api, row[-1])) == ["a", "b"]
    for name in row:
        ok(api.delete(name))


def test_only_routers_on_a_cycle_limit_the_hops(api: Api, topic: str) -> None:
    """The test has a mirror and a chain that starts at it."""
    one, other, *tail = names_for(topic, [0, 1, 0, 1, 1])
    forward = route(api, one, other)
    back = route(api, other, one, allow_cycle=True)
    names = [route(api, *pair) for pair in itertools.pairwise([other, *tail])]
    ok(api.append(one, "a"))
    assert settled(api, forward, back, *names) == [HOPS // 2] * 2 + [HOPS // 2] * len(names)
    assert data(kept(api, tail[-1])) == ["a"] * (HOPS // 2)
    assert drop(api, back)
    ok(api.append(one, "b"))
    passed(api, forward, *names)
    assert data(kept(api, tail[-1])) == [*["a"] * (HOPS // 2), "b"]


@pytest.mark.parametrize("count", [1, 10])
def test_a_mirror_terminates(api: Api, row: list[str], count: int) -> None:
    one, other, *_ = row
    forward = route(api, one, other, allow_cycle=True)
    back = route(api, other, one, allow_cycle=True)
    ok(api.append(one, *range(count)))
    assert settled(api, forward, back) == [4 * count, 4 * count]
    assert Counter(data(kept(api, one))) == Counter([*range(count)] * 5)
    assert Counter(data(kept(api, other))) == Counter([*range(count)] * 4)
    ok(api.append(other, "back"))
    assert settled(api, forward, back) == [4 * count + 4, 4 * count + 4]
    assert Counter(data(kept(api, one)))["back"] == 4
    assert Counter(data(kept(api, other)))["back"] == 5


def test_a_cycle_of_three_terminates(api: Api, row: list[str]) -> None:
    topics = row[:3]
    names = [
        route(api, source, dest, allow_cycle=True)
        for source, dest in zip(topics, topics[1:] + topics[:1], strict=True)
    ]
    ok(api.append(topics[0], "a"))
    assert settled(api, *names) == [3, 3, 2]
    assert [len(kept(api, name)) for name in topics] == [3, 3, 3]


def test_a_mirror_returns_no_records_to_the_node_that_wrote_them(api: Api, row: list[str]) -> None:
    one, other, *_ = row
    names = [route(api, one, other), route(api, other, one, allow_cycle=True)]
    ok(api.append(one, "of n1", node="n1"))
    ok(api.append(other, "of n2", node="n2"))
    settled(api, *names)
    for topic in (one, other):
        assert {*data(api.read(topic, node="n1"))} == {"of n2"}
        assert {*data(api.read(topic, node="n2"))} == {"of n1"}
        assert api.read(topic, node=["n1", "n2"]) == []
        assert {*data(api.read(topic, node="n3"))} == {"of n1", "of n2"}


def test_a_mirror_with_filters_forwards_only_matching_records(api: Api, row: list[str]) -> None:
    one, other, *_ = row
    names = [
        route(api, one, other, filter=["tag", "Glob", "one:*"], allow_cycle=True),
        route(api, other, one, filter=["tag", "Glob", "other:*"], allow_cycle=True),
    ]
    ok(api.append(one, records=[{"data": 1, "tag": "one:a"}, {"data": 2, "tag": "other:a"}]))
    ok(api.append(other, records=[{"data": 3, "tag": "other:b"}, {"data": 4}]))
    assert settled(api, *names) == [1, 1]
    assert data(kept(api, one)) == [1, 2, 3]
    assert sorted(data(kept(api, other))) == [1, 3, 4]


Ends = tuple[str, str]
FIELDS = {"router", "source", "source_topic_id", "source_epoch", "source_seq", "key"}
META_MAX = 16 << 10
RECORD_MAX = 1 << 20


def exactly(api: Api, source: str, dest: str, **fields: Any) -> str:
    return route(api, source, dest, guarantee="exactly_once", **fields)


def stamps(records: list[Any]) -> list[Any]:
    """Return the stamps of copies, and check that they have exactly the documented fields."""
    found = [record["meta"][STAMP] for record in records]
    for stamp in found:
        assert {*stamp} == FIELDS, stamp
        assert isinstance(stamp["key"], str)
    assert len({stamp["key"] for stamp in found}) == len(found), "two records have the same key"
    return found


def test_a_stamp_names_the_record_it_was_copied_from(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.append(source, "old"), 201)
    name = exactly(api, source, dest)
    ok(api.append(source, "a", "b"))
    ok(api.append(source, "c"))
    epoch = api.state(source)["epoch"]
    found = stamps(arrived(api, dest, "a", "b", "c"))
    assert [stamp["source_seq"] for stamp in found] == [2, 3, 4]
    for stamp in found:
        assert (stamp["router"], stamp["source"]) == (name, source)
        assert stamp["source_epoch"] == epoch
    assert len({stamp["source_topic_id"] for stamp in found}) == 1
    assert not any("meta" in record for record in kept(api, source)), "the source has a stamp"


def test_a_router_without_exactly_once_adds_no_stamp(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest)
    ok(api.append(source, records=[{"data": 1}, {"data": 2, "meta": {STAMP: "mine"}}]))
    found = arrived(api, dest, 1, 2)
    assert "meta" not in found[0]
    assert found[1]["meta"] == {STAMP: "mine"}


def test_other_meta_members_are_unchanged_byte_for_byte(api: Api, ends: Ends) -> None:
    source, dest = ends
    exactly(api, source, dest)
    records = b",".join(b'{"data":0,"meta":' + value + b"}" for value in META)
    ok(api.call("POST", f"/v0/topics/{source}", b'{"records":[' + records + b"]}"))
    until(lambda: len(kept(api, dest)), lambda count: count == len(META))
    stamps(kept(api, dest))
    for record, value in zip(raw_records(api.diff(dest)), META, strict=True):
        members = value.strip()[1:-1].strip()
        assert members in bytes(record.meta)


@pytest.mark.parametrize(
    "forged",
    [
        b'{"_topics_router":1}',
        b'{"a":1,"_topics_router":{"key":"x"},"b":1.10}',
        b'{"_topics_\\u0072outer":{"router":"x"},"b":2}',
        b'{"a":{"_topics_router":1}}',
    ],
    ids=lambda value: f"6 {value!r}",
)
def test_an_earlier_stamp_is_replaced(api: Api, ends: Ends, forged: bytes) -> None:
    source, dest = ends
    name = exactly(api, source, dest)
    body = b'{"records":[{"data":"a","meta":' + forged + b"}]}"
    ok(api.call("POST", f"/v0/topics/{source}", body))
    (copy,) = arrived(api, dest, "a")
    (stamp,) = stamps([copy])
    assert (stamp["router"], stamp["source_seq"]) == (name, 1)
    others = {key: value for key, value in json.loads(forged).items() if key != STAMP}
    assert {key: value for key, value in copy["meta"].items() if key != STAMP} == others


def test_the_stamp_of_a_chain_names_its_last_router(api: Api, topic: str) -> None:
    row = names_for(topic, [0, 1, 0])
    names = [exactly(api, *pair) for pair in itertools.pairwise(row)]
    ok(api.append(row[1], "direct"))
    ok(api.append(row[0], records=[{"data": "a", "meta": {"m": 1}}]))
    found = arrived(api, row[2], "direct", "a")
    last = stamps(found)
    assert [(stamp["router"], stamp["source"], stamp["source_seq"]) for stamp in last] == [
        (names[1], row[1], 1),
        (names[1], row[1], 2),
    ]
    assert {*found[1]["meta"]} == {"m", STAMP}
    for name in row:
        ok(api.delete(name))


def test_meta_and_records_of_the_largest_size_are_copied(api: Api, ends: Ends) -> None:
    source, dest = ends
    exactly(api, source, dest)
    full = {f"{number}": "" for number in range(64)}
    full["0"] = "x" * (META_MAX - len(json.dumps(full, separators=(",", ":"))))
    meta = json.dumps(full, separators=(",", ":"))
    payload = "x" * (RECORD_MAX - META_MAX - 2)
    body = f'{{"records":[{{"meta":{meta},"data":"{payload}"}}]}}'.encode()
    ok(api.call("POST", f"/v0/topics/{source}", body))
    ok(api.append(source, "after"))
    found = until(lambda: kept(api, dest), lambda found: len(found) == 2)
    assert data(found) == [payload, "after"]
    stamps(found)
    assert found[0]["meta"] == full | {STAMP: found[0]["meta"][STAMP]}


def test_the_guarantee_of_a_router_can_be_changed(api: Api, ends: Ends) -> None:
    source, dest = ends
    name = route(api, source, dest)
    expected: list[str] = []
    for guarantee in ("at_least_once", "exactly_once") * 2:
        answer = put(api, name, source, dest, guarantee=guarantee)
        assert ok(answer)["guarantee"] == guarantee
        ok(api.append(source, guarantee))
        expected.append(guarantee)
        found = arrived(api, dest, *expected)
        stamped = [
            "exactly_once" if STAMP in each.get("meta", {}) else "at_least_once" for each in found
        ]
        assert stamped == expected
    assert forwarded(api, name) == 4
