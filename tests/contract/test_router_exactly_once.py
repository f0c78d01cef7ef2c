"""``guarantee: "exactly_once"``: what stands in ``meta._topics_router`` (§6)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.contract.test_verbatim import META
from tests.support.api import Api, data, ok, raw_records
from tests.support.copies import STAMP, arrived, forwarded, kept, route
from tests.support.queues import until
from tests.support.routers import names_for, put

Ends = tuple[str, str]
FIELDS = {"router", "source", "source_topic_id", "source_epoch", "source_seq", "key"}
META_MAX = 16 << 10
RECORD_MAX = 1 << 20


def exactly(api: Api, source: str, dest: str, **fields: Any) -> str:
    return route(api, source, dest, guarantee="exactly_once", **fields)


def stamps(records: list[Any]) -> list[Any]:
    """The stamps of copies, which have exactly the documented fields."""
    found = [record["meta"][STAMP] for record in records]
    for stamp in found:
        assert {*stamp} == FIELDS, stamp
        assert isinstance(stamp["key"], str)
    assert len({stamp["key"] for stamp in found}) == len(found), "a key for each record"
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
    assert not any("meta" in record for record in kept(api, source)), "the source has none"


def test_a_router_without_the_guarantee_stamps_nothing(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest)
    ok(api.append(source, records=[{"data": 1}, {"data": 2, "meta": {STAMP: "mine"}}]))
    found = arrived(api, dest, 1, 2)
    assert "meta" not in found[0]
    assert found[1]["meta"] == {STAMP: "mine"}


def test_other_members_of_meta_keep_their_bytes(api: Api, ends: Ends) -> None:
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


def test_a_chain_names_the_last_router(api: Api, topic: str) -> None:
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


def test_readers_may_leave_the_stamp_out(api: Api, ends: Ends) -> None:
    source, dest = ends
    exactly(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    (bare,) = api.read(dest, include_meta=False)
    assert "meta" not in bare


def test_the_guarantee_may_change(api: Api, ends: Ends) -> None:
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


def test_readings_of_a_copy_agree(api: Api, ends: Ends) -> None:
    """Every answer that shows a copy shows the same stamp."""
    source, dest = ends
    exactly(api, source, dest)
    ok(api.append(source, *range(50)))
    found = arrived(api, dest, *range(50))
    single = [
        ok(api.diff(dest, from_seq=seq, limit=1, include_tags=True))["records"][0]
        for seq in range(50)
    ]
    assert single == found
    assert stamps(found) == stamps(single)
