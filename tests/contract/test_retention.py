"""Caps (§0.10, §1.1, §2): retained records, topics that reject writes, and restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.retained import (
    CLASSES,
    RECORDS,
    erased,
    floors,
    gap,
    observable_state,
    page_of,
    put,
    seqs,
    sizes,
)
from tests.support.api import Api, ok, refused
from tests.support.server import Server

pytestmark = pytest.mark.slow

MB = 1_000_000


# --- cap_records


def test_a_cap_in_the_config_of_the_first_write_applies_to_that_write(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(10), config={"cap_records": 4}), 201)
    assert gap(page_of(api, topic, 0), "cap") == (1, 6)
    assert floors(api, topic)["count"] == 4


def test_a_cap_may_evict_part_of_a_large_write(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2)
    ok(api.append(topic, *[f"{number}" * MB for number in range(6)]))
    page = page_of(api, topic, 0, max_batch_bytes=8 << 20)
    assert (gap(page, "cap"), seqs(page)) == ((1, 4), [5, 6])
    assert [record["data"][0] for record in page["records"]] == ["4", "5"]
    state = floors(api, topic)
    assert state["count"] == 2
    assert 2 * MB <= state["bytes"] <= 2 * MB + 1000
    ok(api.append(topic, "x"))
    assert floors(api, topic)["earliest_seq"] == 6


# --- cap_bytes


def fitting(costs: list[int], cap: int) -> list[int]:
    """Return the longest list of the newest seqs whose sizes sum up to at most ``cap``."""
    kept: list[int] = []
    for seq in range(len(costs), 0, -1):
        if sum(costs[seq - 1 :]) > cap:
            break
        kept.insert(0, seq)
    return kept


@pytest.mark.parametrize("cap", [2300, 2800, 3500, 10_000], ids=lambda cap: f"0.10 cap_bytes={cap}")
def test_the_newest_records_within_cap_bytes_are_kept(
    api: Api, topic: str, new_name: Callable[[], str], cap: int
) -> None:
    costs = sizes(api, new_name(), *RECORDS)
    put(api, topic, cap_bytes=cap)
    for number, record in enumerate(RECORDS, 1):
        ok(api.append(topic, records=[record]))
        kept = fitting(costs[:number], cap)
        state = floors(api, topic)
        assert state["bytes"] <= cap
        assert (state["count"], state["bytes"]) == (len(kept), sum(costs[seq - 1] for seq in kept))
        page = page_of(api, topic, 0)
        assert seqs(page) == kept
        assert gap(page, "cap") == ((1, kept[0] - 1) if kept[0] > 1 else None)


def test_a_cap_of_exactly_the_bytes_evicts_nothing(
    api: Api, topic: str, new_name: Callable[[], str]
) -> None:
    costs = sizes(api, new_name(), *RECORDS)
    put(api, topic, cap_bytes=sum(costs))
    assert sizes(api, topic, *RECORDS) == costs
    assert floors(api, topic)["count"] == len(RECORDS)
    put(api, topic, cap_bytes=sum(costs) - 1)
    assert floors(api, topic)["earliest_seq"] == 2


@pytest.mark.parametrize(
    ("records", "size", "left"), [(3, 10, 3), (50, 3000, 3)], ids=["0.10 records", "0.10 bytes"]
)
def test_the_cap_that_is_reached_first_evicts(
    api: Api, topic: str, records: int, size: int, left: int
) -> None:
    put(api, topic, cap_records=records, cap_bytes=10_000)
    for _ in range(10):
        ok(api.append(topic, "x" * size))
    assert floors(api, topic)["count"] == left


@pytest.mark.parametrize("caps", [{"cap_records": 3}, {"cap_bytes": 3900}], ids=str)
def test_a_write_larger_than_the_cap_keeps_its_newest_records(
    api: Api, topic: str, caps: dict[str, int]
) -> None:
    put(api, topic, **caps)
    ok(api.append(topic, "before"))
    body = ok(api.append(topic, *["x" * 1000] * 10))
    assert (body["first_seq"], body["last_seq"], body["count"]) == (2, 11, 10)
    page = page_of(api, topic, 0)
    assert (seqs(page), gap(page, "cap")) == ([9, 10, 11], (1, 8))


def test_a_record_larger_than_cap_bytes_is_accepted(api: Api, topic: str) -> None:
    put(api, topic, cap_bytes=100)
    assert ok(api.append(topic, "x" * 1000))["seqs"] == [1]
    assert ok(api.append(topic, "y"))["seqs"] == [2]
    page = page_of(api, topic, 0)
    assert (seqs(page), gap(page, "cap")) == ([2], (1, 1))


# --- the effect of a PUT on existing records


@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_topic_refuses_and_appends_nothing(api: Api, topic: str, durability: str) -> None:
    put(api, topic, cap_records=3, discard="reject", durability=durability)
    ok(api.append(topic, 1, 2))
    refused(api.append(topic, 3, 4), 422, "topic_full")
    assert floors(api, topic)["head_seq"] == 2
    ok(api.append(topic, 3))
    before = observable_state(api, topic)
    for data in ([4], [4, 5], list(range(100))):
        refused(api.append(topic, *data), 422, "topic_full")
    assert observable_state(api, topic) == before
    assert [record["data"] for record in api.read(topic)] == [1, 2, 3]


def test_a_write_larger_than_the_cap_is_refused(api: Api, topic: str) -> None:
    put(api, topic, cap_records=3, discard="reject")
    refused(api.append(topic, 1, 2, 3, 4), 422, "topic_full")
    assert floors(api, topic)["head_seq"] == 0
    put(api, topic, cap_records=0, cap_bytes=1000)
    refused(api.append(topic, "x" * 1000), 422, "topic_full")
    assert ok(api.append(topic, "x"))["seqs"] == [1]


def test_a_first_write_that_its_own_config_refuses_appends_nothing(api: Api, topic: str) -> None:
    config = {"cap_records": 1, "discard": "reject"}
    refused(api.append(topic, 1, 2, config=config, idempotency_key="k"), 422, "topic_full")
    state = api.get(topic)
    assert state.status == 404 or state.json()["head_seq"] == 0
    answer = api.append(topic, 1, config=config, idempotency_key="k")
    body = ok(answer, answer.status)
    assert (body["seqs"], body["deduped"]) == ([1], False)


def test_a_topic_is_full_at_its_cap_bytes(
    api: Api, topic: str, new_name: Callable[[], str]
) -> None:
    costs = sizes(api, new_name(), *RECORDS)
    put(api, topic, cap_bytes=sum(costs[:4]), discard="reject")
    assert sizes(api, topic, *RECORDS[:4]) == costs[:4]
    refused(api.append(topic, records=[RECORDS[6]]), 422, "topic_full")
    erased(api, topic, before_seq=2)
    ok(api.append(topic, records=[RECORDS[6]]))
    assert [record["data"] for record in api.read(topic)] == [
        record["data"] for record in [*RECORDS[1:4], RECORDS[6]]
    ]


def test_a_repeated_key_gets_its_response_even_if_the_topic_is_full(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2, discard="reject")
    first = ok(api.append(topic, 1, 2, idempotency_key="k"))
    refused(api.append(topic, 3, idempotency_key="other"), 422, "topic_full")
    again = ok(api.append(topic, 1, 2, idempotency_key="k"))
    assert again["deduped"] is True
    assert [again[name] for name in ("seqs", "head_seq", "count")] == [
        first[name] for name in ("seqs", "head_seq", "count")
    ]
    erased(api, topic, before_seq=3)
    # Only a successful append stores its key.
    assert ok(api.append(topic, 3, idempotency_key="other"))["deduped"] is False
    assert ok(api.append(topic, 1, 2, idempotency_key="k"))["seqs"] == [1, 2]


def test_a_repeated_key_gets_its_response_even_if_its_records_were_evicted(
    api: Api, topic: str
) -> None:
    put(api, topic, cap_records=1)
    ok(api.append(topic, 1, 2, idempotency_key="k"))
    ok(api.append(topic, 3))
    again = ok(api.append(topic, 1, 2, idempotency_key="k"))
    assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [1, 2], 2)
    assert floors(api, topic)["head_seq"] == 3


def test_the_discard_policy_of_a_topic_can_be_changed(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2, discard="reject")
    ok(api.append(topic, 1, 2))
    refused(api.append(topic, 3), 422, "topic_full")
    put(api, topic, discard="old")
    ok(api.append(topic, 3))
    assert [record["data"] for record in api.read(topic)] == [2, 3]
    put(api, topic, discard="reject")
    refused(api.append(topic, 4), 422, "topic_full")
    put(api, topic, cap_records=3)
    ok(api.append(topic, 4))
    assert gap(page_of(api, topic, 0), "cap") == (1, 1)


def test_a_topic_above_a_lowered_cap_continues_to_reject_writes(api: Api, topic: str) -> None:
    put(api, topic, discard="reject")
    ok(api.append(topic, *range(5)))
    put(api, topic, cap_records=3)
    refused(api.append(topic, 5), 422, "topic_full")
    erased(api, topic, before_seq=4)
    assert ok(api.append(topic, 5))["seqs"] == [6]


def test_a_cap_is_exact_under_concurrent_writers(server: Server, api: Api, topic: str) -> None:
    put(api, topic, cap_records=50, discard="reject", durability="fsync")

    def write(number: int) -> int:
        with Api(server.address) as own:
            return sum(own.append(topic, [number, count]).status == 200 for count in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 50
    assert seqs(page_of(api, topic, 0)) == list(range(1, 51))


def _scenes(api: Api, durability: str) -> dict[str, str]:
    """Create topics with floors of every kind. Their names describe them."""
    scenes = {}

    def scene(name: str, about: str, count: int = 10, **config: Any) -> str:
        full = f"{durability}.{name}"
        put(api, full, durability=durability, **config)
        for number in range(1, count + 1):
            ok(
                api.append(
                    full,
                    records=[{"data": number, "tag": f"t{number}"}],
                    idempotency_key=f"k{number}",
                )
            )
        scenes[full] = about
        return full

    aged = scene("ttl", "expired records, the TTL removed")
    mixed = scene("mixed", "cap first, then TTL")
    unseen = scene("unseen", "expired records that no request has read, the TTL removed")
    scene("cap", "a cap that evicts", cap_records=4)
    put(api, scene("relaxed", "a cap that was removed", cap_records=4), cap_records=0)
    put(api, scene("tightened", "a cap that was set later"), cap_records=4)
    put(api, scene("both-ways", "a cap that was set and then raised"), cap_records=4)
    put(api, f"{durability}.both-ways", cap_records=9)
    erased(api, scene("deleted", "a cap, then a delete", cap_records=4), before_seq=9)
    erased(api, scene("emptied", "a cap, then everything deleted", cap_records=4), before_seq=99)
    holes = scene("holes", "deletes between other records, then a cap")
    for number in (2, 5, 6):
        erased(api, holes, match=f"t{number}")
    put(api, holes, cap_records=4)
    scene("bytes", "a cap of bytes", cap_bytes=500)
    scene("full", "a topic that rejects", cap_records=10, discard="reject")
    again = scene("again", "deleted and created again", cap_records=3)
    ok(api.delete(again))
    scene("again", "deleted and created again", 5, cap_records=3)
    put(api, mixed, cap_records=7)
    time.sleep(0.5)
    for name in (aged, mixed, unseen):
        put(api, name, ttl_ms=300)
        if name != unseen:
            assert floors(api, name)["count"] == 0
        put(api, name, ttl_ms=0)
        ok(api.append(name, "new"))
    return scenes


@pytest.fixture(scope="module", params=["stop", "kill"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Api, dict[str, Any]]]:
    """Every scene as observed before a restart, and a client of the restarted server."""
    path: Path = tmp_path_factory.mktemp("retention") / "data"
    with Server(path, shards=1) as server:
        with Api(server.address) as api:
            scenes = [*_scenes(api, "fsync"), *_scenes(api, "disk")]
            before = {name: observable_state(api, name) for name in scenes}
        with server.again(request.param) as api:
            yield api, before


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_floors_and_tombstones_survive_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, before = restarted
    of_class = {name: seen for name, seen in before.items() if name.startswith(f"{durability}.")}
    assert {name: observable_state(api, name) for name in of_class} == of_class


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_full_topic_stays_full_and_keeps_its_keys_after_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, _before = restarted
    topic = f"{durability}.full"
    refused(api.append(topic, "more"), 422, "topic_full")
    assert ok(api.append(topic, "again", idempotency_key="k3"))["seqs"] == [3]
    again = ok(api.append(f"{durability}.emptied", "again", idempotency_key="k3"))
    assert (again["deduped"], again["seqs"]) == (True, [3])


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_cap_applies_after_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, _before = restarted
    topic = f"{durability}.holes"
    ok(api.append(topic, "eleventh"))
    page = page_of(api, topic, 0)
    assert seqs(page) == [8, 9, 10, 11]
    assert gap(page, "cap") == (1, 7)
