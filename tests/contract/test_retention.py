"""Caps, TTL, the full topic and what a reader is told about the loss (§0.10, §1.1, §2, §3.3)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api, ok, refused
from tests.contract.retained import agrees, everything, floors, gap, page_of, seqs, sizes
from tests.model import Kept, TopicModel
from tests.server import Server

pytestmark = pytest.mark.slow

CLASSES = ("ephemeral", "memory", "disk", "fsync")
MB = 1_000_000


def erase(api: Api, topic: str, **fields: Any) -> int:
    return int(ok(api.call("POST", f"/v0/topics/{topic}/delete", fields))["deleted"])


def put(api: Api, topic: str, **config: Any) -> None:
    answer = api.put(topic, config)
    ok(answer, answer.status)


# --- cap_records


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize("cap", [1, 3, 7])
@pytest.mark.parametrize(
    "batches", [[1] * 9, [4, 4, 4], [2, 10, 1], [20]], ids=lambda batches: f"2 batches={batches}"
)
def test_the_newest_records_stay_under_a_cap(
    api: Api, topic: str, durability: str, cap: int, batches: list[int]
) -> None:
    put(api, topic, cap_records=cap, durability=durability)
    model = TopicModel(cap)
    for size in batches:
        data = [[model.head_seq, number] for number in range(size)]
        first = model.head_seq + 1
        body = ok(api.append(topic, *data))
        assert (body["seqs"], body["count"], body["head_seq"]) == (
            list(range(first, first + size)),
            size,
            first + size - 1,
        )
        model.append(map(Kept, data))
        assert floors(api, topic)["count"] == min(cap, model.head_seq)
    agrees(api, topic, model)


def test_a_cap_in_the_config_of_the_first_write_counts_for_that_write(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(10), config={"cap_records": 4}), 201)
    assert gap(page_of(api, topic, 0), "cap") == (1, 6)
    assert floors(api, topic)["count"] == 4


def test_a_cap_cuts_through_a_large_write(api: Api, topic: str) -> None:
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

RECORDS = [{"data": "x" * size} for size in (300, 10, 2000, 5, 5, 700, 1, 40, 1200, 90)]


def fitting(costs: list[int], cap: int) -> list[int]:
    """The longest row of newest seqs that costs at most ``cap``."""
    kept: list[int] = []
    for seq in range(len(costs), 0, -1):
        if sum(costs[seq - 1 :]) > cap:
            break
        kept.insert(0, seq)
    return kept


@pytest.mark.parametrize("cap", [2300, 2800, 3500, 10_000], ids=lambda cap: f"0.10 cap_bytes={cap}")
def test_the_newest_bytes_stay_under_a_cap(
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


def test_meta_counts_against_the_bytes(api: Api, topic: str) -> None:
    put(api, topic, cap_bytes=2000)
    for _ in range(4):
        ok(api.append(topic, records=[{"data": 1, "meta": {"k": "x" * 900}}]))
    assert floors(api, topic)["count"] in (1, 2)


@pytest.mark.parametrize(
    ("records", "size", "left"), [(3, 10, 3), (50, 3000, 3)], ids=["0.10 records", "0.10 bytes"]
)
def test_whichever_cap_is_hit_first_evicts(
    api: Api, topic: str, records: int, size: int, left: int
) -> None:
    put(api, topic, cap_records=records, cap_bytes=10_000)
    for _ in range(10):
        ok(api.append(topic, "x" * size))
    assert floors(api, topic)["count"] == left


@pytest.mark.parametrize("caps", [{"cap_records": 3}, {"cap_bytes": 3900}], ids=str)
def test_a_write_larger_than_the_whole_cap_leaves_its_newest(
    api: Api, topic: str, caps: dict[str, int]
) -> None:
    put(api, topic, **caps)
    ok(api.append(topic, "before"))
    body = ok(api.append(topic, *["x" * 1000] * 10))
    assert (body["first_seq"], body["last_seq"], body["count"]) == (2, 11, 10)
    page = page_of(api, topic, 0)
    assert (seqs(page), gap(page, "cap")) == ([9, 10, 11], (1, 8))


def test_a_record_larger_than_cap_bytes_is_taken(api: Api, topic: str) -> None:
    put(api, topic, cap_bytes=100)
    assert ok(api.append(topic, "x" * 1000))["seqs"] == [1]
    assert ok(api.append(topic, "y"))["seqs"] == [2]
    page = page_of(api, topic, 0)
    assert (seqs(page), gap(page, "cap")) == ([2], (1, 1))


# --- discard: reject


@pytest.mark.parametrize("durability", CLASSES)
def test_a_full_topic_refuses_and_appends_nothing(api: Api, topic: str, durability: str) -> None:
    put(api, topic, cap_records=3, discard="reject", durability=durability)
    ok(api.append(topic, 1, 2))
    refused(api.append(topic, 3, 4), 422, "topic_full")
    assert floors(api, topic)["head_seq"] == 2
    ok(api.append(topic, 3))
    before = everything(api, topic)
    for data in ([4], [4, 5], list(range(100))):
        refused(api.append(topic, *data), 422, "topic_full")
    assert everything(api, topic) == before
    assert [record["data"] for record in api.read(topic)] == [1, 2, 3]


def test_a_write_larger_than_the_whole_cap_is_refused(api: Api, topic: str) -> None:
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


def test_a_topic_is_full_at_its_bytes(api: Api, topic: str, new_name: Callable[[], str]) -> None:
    costs = sizes(api, new_name(), *RECORDS)
    put(api, topic, cap_bytes=sum(costs[:4]), discard="reject")
    assert sizes(api, topic, *RECORDS[:4]) == costs[:4]
    refused(api.append(topic, records=[RECORDS[6]]), 422, "topic_full")
    erase(api, topic, before_seq=2)
    ok(api.append(topic, records=[RECORDS[6]]))
    assert [record["data"] for record in api.read(topic)] == [
        record["data"] for record in [*RECORDS[1:4], RECORDS[6]]
    ]


def test_a_deduped_answer_is_given_though_the_topic_is_full(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2, discard="reject")
    first = ok(api.append(topic, 1, 2, idempotency_key="k"))
    refused(api.append(topic, 3, idempotency_key="other"), 422, "topic_full")
    again = ok(api.append(topic, 1, 2, idempotency_key="k"))
    assert again["deduped"] is True
    assert [again[name] for name in ("seqs", "head_seq", "count")] == [
        first[name] for name in ("seqs", "head_seq", "count")
    ]
    erase(api, topic, before_seq=3)
    assert (
        ok(api.append(topic, 3, idempotency_key="other"))["deduped"] is False
    )  # only a successful append keeps its key
    assert ok(api.append(topic, 1, 2, idempotency_key="k"))["seqs"] == [1, 2]


def test_a_deduped_answer_is_given_though_its_records_were_evicted(api: Api, topic: str) -> None:
    put(api, topic, cap_records=1)
    ok(api.append(topic, 1, 2, idempotency_key="k"))
    ok(api.append(topic, 3))
    again = ok(api.append(topic, 1, 2, idempotency_key="k"))
    assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [1, 2], 2)
    assert floors(api, topic)["head_seq"] == 3


def test_a_delete_makes_room(api: Api, topic: str) -> None:
    put(api, topic, cap_records=4, discard="reject")
    model = TopicModel()
    for number in range(4):
        ok(api.append(topic, records=[{"data": number, "tag": f"t{number}"}]))
        model.append([Kept(number, f"t{number}")])
    assert erase(api, topic, match="t2") == model.delete(match="t2")
    ok(api.append(topic, 4))
    model.append([Kept(4)])
    refused(api.append(topic, 5), 422, "topic_full")
    agrees(api, topic, model)  # rejecting never evicts, so every read is silent


def test_discard_changes_in_place(api: Api, topic: str) -> None:
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


def test_a_tightened_cap_that_rejects_goes_on_rejecting(api: Api, topic: str) -> None:
    put(api, topic, discard="reject")
    ok(api.append(topic, *range(5)))
    put(api, topic, cap_records=3)
    refused(api.append(topic, 5), 422, "topic_full")
    erase(api, topic, before_seq=4)
    assert ok(api.append(topic, 5))["seqs"] == [6]


def test_a_cap_is_exact_under_concurrent_writers(server: Server, api: Api, topic: str) -> None:
    put(api, topic, cap_records=50, discard="reject", durability="fsync")

    def write(number: int) -> int:
        with Api(server.address) as own:
            return sum(own.append(topic, [number, count]).status == 200 for count in range(20))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 50
    assert seqs(page_of(api, topic, 0)) == list(range(1, 51))


# --- what a PUT does to the records that are there


@pytest.mark.parametrize("cap", [1, 4, 9], ids=lambda cap: f"1.1 cap_records={cap}")
def test_a_tightened_cap_takes_existing_records(api: Api, topic: str, cap: int) -> None:
    model = TopicModel()
    for size in (3, 1, 5):
        answer = api.append(topic, *range(size))
        ok(answer, answer.status)
        model.append(map(Kept, range(size)))
    put(api, topic, cap_records=cap)
    model.set_cap(cap)
    agrees(api, topic, model)


def test_a_relaxed_cap_brings_nothing_back(api: Api, topic: str) -> None:
    put(api, topic, cap_records=3)
    model = TopicModel(3)
    ok(api.append(topic, *range(8)))
    model.append(map(Kept, range(8)))
    for cap in (5, 0):
        put(api, topic, cap_records=cap)
        model.set_cap(cap)
        agrees(api, topic, model)
    ok(api.append(topic, "more", "and more"))
    model.append([Kept("more"), Kept("and more")])
    agrees(api, topic, model)


def test_a_put_of_other_fields_evicts_nothing(api: Api, topic: str) -> None:
    put(api, topic, cap_records=3)
    ok(api.append(topic, *range(5)))
    before = everything(api, topic)
    for fields in ({}, {"cap_records": 3}, {"discard": "old"}):
        put(api, topic, **fields)
        assert everything(api, topic) == before


# --- tombstones and deletes


def test_a_deleted_gap_is_silent_and_an_evicted_one_is_told(api: Api, topic: str) -> None:
    model = TopicModel()
    ok(api.append(topic, *range(10)), 201)
    model.append(map(Kept, range(10)))
    assert erase(api, topic, before_seq=4) == model.delete(4) == 3
    agrees(api, topic, model)
    put(api, topic, cap_records=5)
    model.set_cap(5)
    assert (model.evict_floor, model.earliest_seq) == (6, 6)
    agrees(api, topic, model)
    assert erase(api, topic, before_seq=9) == model.delete(9) == 3
    assert model.gap(0) == (1, 8)
    assert model.gap(4) == (5, 8)
    assert model.gap(5) is None
    agrees(api, topic, model)


def test_an_eviction_that_ends_at_deleted_records_moves_the_floor_no_further_than_what_it_took(
    api: Api, topic: str
) -> None:
    records = [
        {"data": number, "tag": "gone" if 3 <= number <= 6 else "kept"} for number in range(1, 11)
    ]
    ok(api.append(topic, records=records), 201)
    model = TopicModel()
    model.append(Kept(record["data"], str(record["tag"])) for record in records)
    assert erase(api, topic, match="gone") == model.delete(match="gone") == 4
    put(api, topic, cap_records=4)
    model.set_cap(4)
    assert (model.evict_floor, model.earliest_seq) == (3, 7)
    agrees(api, topic, model)


@pytest.mark.parametrize("cap", [1, 3], ids=lambda cap: f"3.3 cap={cap}")
def test_deleting_everything_that_a_cap_left_keeps_the_tombstone(
    api: Api, topic: str, cap: int
) -> None:
    put(api, topic, cap_records=cap)
    model = TopicModel(cap)
    ok(api.append(topic, *range(6)))
    model.append(map(Kept, range(6)))
    assert erase(api, topic, before_seq=100) == model.delete(100) == cap
    assert floors(api, topic) == {"head_seq": 6, "earliest_seq": 7, "count": 0, "bytes": 0}
    agrees(api, topic, model)
    ok(api.append(topic, "next"))
    model.append([Kept("next")])
    agrees(api, topic, model)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_random_appends_deletes_and_caps_leave_what_the_model_says(
    api: Api, topic: str, seed: int
) -> None:
    source = random.Random(seed)
    ok(api.put(topic), 201)
    model = TopicModel()
    for _ in range(30):
        step = source.random()
        if step < 0.5:
            records = [
                Kept([model.head_seq, number], source.choice((None, "a", "ab", "b")))
                for number in range(source.randint(1, 5))
            ]
            sent = [
                {"data": kept.data} | ({"tag": kept.tag} if kept.tag else {}) for kept in records
            ]
            ok(api.append(topic, records=sent))
            model.append(records)
        elif step < 0.75:
            body: dict[str, Any] = {}
            if source.random() < 0.6:
                body["match"] = source.choice(
                    ["a", "b", ["tag", "Glob", "a*"], ["tag", "Eq", "ab"], ["tag", "Glob", "*"]]
                )
            if not body or source.random() < 0.5:
                body["before_seq"] = source.randint(0, model.head_seq + 2)
            assert erase(api, topic, **body) == model.delete(**body), f"{body} of {model}"
        else:
            cap = source.choice((0, 1, 4, 8, 12))
            put(api, topic, cap_records=cap)
            model.set_cap(cap)
        agrees(api, topic, model, {0, source.randint(0, model.head_seq), model.head_seq})
    agrees(api, topic, model)


def test_there_is_one_tombstone_and_the_pages_go_on_behind_it(api: Api, topic: str) -> None:
    put(api, topic, cap_records=5)
    ok(api.append(topic, *range(12)))
    page = ok(api.diff(topic, from_seq=2, limit=2))
    assert (gap(page, "cap"), seqs(page), page["next_from_seq"], page["caught_up"]) == (
        (3, 7),
        [8, 9],
        9,
        False,
    )
    page = ok(api.diff(topic, from_seq=9, limit=2))
    assert (gap(page), seqs(page), page["next_from_seq"]) == (None, [10, 11], 11)
    assert page["lag"] == 1


def test_the_node_filter_hides_no_loss(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2)
    ok(api.append(topic, 1, 2, 3, 4, node="me"))
    page = page_of(api, topic, 0, node="me")
    assert (gap(page, "cap"), page["records"], page["next_from_seq"], page["caught_up"]) == (
        (1, 2),
        [],
        4,
        True,
    )
    page = page_of(api, topic, 2, node="me")
    assert (gap(page), page["records"]) == (None, [])


def test_a_recreated_topic_tells_one_thing_though_a_cap_has_taken_some_again(
    api: Api, topic: str
) -> None:
    ok(api.append(topic, *range(9)), 201)
    old = api.state(topic)["epoch"]
    ok(api.delete(topic))
    ok(api.append(topic, *range(5), config={"cap_records": 2}), 201)
    for fields in ({"from_seq": 3, "epoch": old}, {"from_seq": 9}):
        page = ok(api.diff(topic, **fields))
        stone = page["tombstone"]
        assert [
            stone[name] for name in ("reason", "gap_from", "gap_to", "earliest_seq", "head_seq")
        ] == ["recreated", 1, 5, 4, 5]
        assert seqs(page) == [4, 5]
    assert gap(page_of(api, topic, 0), "cap") == (1, 3)


def test_a_deletion_of_the_topic_takes_its_floors_along(api: Api, topic: str) -> None:
    put(api, topic, cap_records=1)
    ok(api.append(topic, *range(5)))
    ok(api.delete(topic))
    ok(api.append(topic, 1, 2), 201)
    page = page_of(api, topic, 0)
    assert (gap(page), seqs(page)) == (None, [1, 2])


# --- long polls


def test_a_long_poll_below_the_floor_is_answered_at_once(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2)
    ok(api.append(topic, *range(5)))
    erase(api, topic, before_seq=6)
    sent = time.monotonic()
    page = page_of(api, topic, 1, wait_ms=20_000)
    assert time.monotonic() - sent < 10
    assert (gap(page, "cap"), page["records"], page["next_from_seq"], page["caught_up"]) == (
        (2, 5),
        [],
        5,
        True,
    )


def test_a_long_poll_in_a_deleted_gap_waits(api: Api, topic: str) -> None:
    ok(api.append(topic, *range(5)), 201)
    erase(api, topic, before_seq=6)
    sent = time.monotonic()
    page = page_of(api, topic, 1, wait_ms=300)
    assert time.monotonic() - sent >= 0.295
    assert (gap(page), page["records"], page["next_from_seq"], page["caught_up"]) == (
        None,
        [],
        5,
        True,
    )


def test_a_write_that_overruns_the_cap_wakes_a_long_poll_with_what_it_missed(
    server: Server, api: Api, topic: str
) -> None:
    put(api, topic, cap_records=4)
    ok(api.append(topic, *range(5)))

    def poll() -> Any:
        with Api(server.address, timeout_s=40) as own:
            return page_of(own, topic, 5, wait_ms=20_000)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(poll)
        time.sleep(0.2)  # nothing outside tells that a poll is parked
        ok(api.append(topic, *range(10)))
        page = asked.result(30)
    assert (gap(page, "cap"), seqs(page)) == ((6, 11), [12, 13, 14, 15])


# --- ttl_ms

OLD_S = 3.0
TTL_MS = 2500  # between the age of the old records and that of those that a test adds
OLD = [{"data": number, "tag": f"t{number}", "node": "me"} for number in range(1, 6)]


@pytest.fixture(scope="module")
def old_topics(server: Server, new_name: Callable[[], str]) -> tuple[list[str], float]:
    """Topics with five records each and no TTL, and when they were written: all of them age
    together.
    """
    names = [new_name() for _ in range(24)]
    with Api(server.address) as api:
        for name in names:
            for number, record in enumerate(OLD):
                answer = api.append(name, records=[record], idempotency_key=f"k{number}")
                ok(answer, answer.status)
    return names, time.monotonic()


@pytest.fixture
def old(old_topics: tuple[list[str], float]) -> str:
    """A topic whose records, seqs 1 to 5, are older than ``TTL_MS``."""
    names, born = old_topics
    time.sleep(max(0.0, born + OLD_S - time.monotonic()))
    return names.pop()


def test_expired_records_are_gone_from_reads_and_state(api: Api, old: str) -> None:
    before = floors(api, old)["bytes"]
    ok(api.append(old, 6, 7))
    fresh = floors(api, old)["bytes"] - before
    put(api, old, ttl_ms=TTL_MS)
    assert floors(api, old) == {"head_seq": 7, "earliest_seq": 6, "count": 2, "bytes": fresh}
    page = page_of(api, old, 0)
    assert (gap(page, "ttl"), seqs(page)) == ((1, 5), [6, 7])
    assert [gap(page_of(api, old, cursor), "ttl") for cursor in range(1, 8)] == [
        (2, 5),
        (3, 5),
        (4, 5),
        (5, 5),
        None,
        None,
        None,
    ]


def test_a_topic_whose_records_have_all_expired_is_empty(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert floors(api, old) == {"head_seq": 5, "earliest_seq": 6, "count": 0, "bytes": 0}
    page = page_of(api, old, 0)
    assert (
        gap(page, "ttl"),
        page["records"],
        page["next_from_seq"],
        page["caught_up"],
        page["lag"],
    ) == ((1, 5), [], 5, True, 0)
    assert gap(page_of(api, old, 5)) is None
    assert ok(api.delete(old, if_empty="true"))["deleted"] is True


def test_seqs_go_on_after_all_records_have_expired(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert ok(api.append(old, "new"))["seqs"] == [6]
    page = page_of(api, old, 3)
    assert (gap(page, "ttl"), seqs(page)) == ((4, 5), [6])


def test_a_ttl_that_has_not_passed_takes_nothing(api: Api, old: str) -> None:
    put(api, old, ttl_ms=3_600_000)
    page = page_of(api, old, 0)
    assert (gap(page), seqs(page)) == (None, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("looked", [True, False], ids=["3.3 seen", "3.3 unseen"])
@pytest.mark.parametrize("ttl_ms", [0, 3_600_000])
def test_a_relaxed_ttl_brings_nothing_back(api: Api, old: str, looked: bool, ttl_ms: int) -> None:
    put(api, old, ttl_ms=TTL_MS)
    if looked:
        assert gap(page_of(api, old, 0), "ttl") == (1, 5)
    put(api, old, ttl_ms=ttl_ms)
    assert floors(api, old) == {"head_seq": 5, "earliest_seq": 6, "count": 0, "bytes": 0}
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)
    ok(api.append(old, "new"))
    page = page_of(api, old, 0)
    assert (gap(page, "ttl"), seqs(page)) == ((1, 5), [6])


def test_expired_records_leave_room_in_a_topic_that_rejects(api: Api, old: str) -> None:
    put(api, old, cap_records=5, discard="reject")
    refused(api.append(old, 6), 422, "topic_full")
    put(api, old, ttl_ms=TTL_MS)
    ok(api.append(old, 6, 7, 8, 9, 10))
    refused(api.append(old, 11), 422, "topic_full")


def test_expired_records_do_not_count_against_a_cap(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    put(api, old, cap_records=3)
    ok(api.append(old, 6, 7, 8))
    page = page_of(api, old, 0)
    assert (gap(page, "ttl"), seqs(page)) == ((1, 5), [6, 7, 8])


def test_cap_and_ttl_together_are_mixed(api: Api, old: str) -> None:
    put(api, old, cap_records=3)
    assert gap(page_of(api, old, 0), "cap") == (1, 2)
    put(api, old, ttl_ms=TTL_MS)
    assert gap(page_of(api, old, 0), "mixed") == (1, 5)
    assert gap(page_of(api, old, 2), "ttl", "mixed") == (3, 5)
    assert gap(page_of(api, old, 5)) is None


def test_a_ttl_gap_reaches_across_deleted_records(api: Api, old: str) -> None:
    assert erase(api, old, before_seq=3) == 2
    put(api, old, ttl_ms=TTL_MS)
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)


def test_deleted_records_behind_expired_ones_are_silent(api: Api, old: str) -> None:
    assert erase(api, old, match="t4") + erase(api, old, match="t5") == 2
    put(api, old, ttl_ms=TTL_MS)
    assert floors(api, old)["earliest_seq"] == 6
    assert [gap(page_of(api, old, cursor), "ttl") for cursor in range(6)] == [
        (1, 5),
        (2, 5),
        (3, 5),
        None,
        None,
        None,
    ]


def test_what_was_deleted_cannot_expire(api: Api, old: str) -> None:
    assert erase(api, old, before_seq=6) == 5
    put(api, old, ttl_ms=TTL_MS)
    assert gap(page_of(api, old, 0)) is None


def test_what_has_expired_cannot_be_deleted(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert erase(api, old, match=["tag", "Glob", "t*"]) == 0
    assert erase(api, old, before_seq=100) == 0
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)


def test_a_deduped_answer_is_given_though_its_record_has_expired(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert page_of(api, old, 0)["records"] == []
    again = ok(api.append(old, "other", idempotency_key="k1"))
    assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [2], 2)


def test_a_long_poll_over_expired_records_ends_with_the_tombstone(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    sent = time.monotonic()
    page = page_of(api, old, 0, wait_ms=20_000)
    assert time.monotonic() - sent < 10
    assert (gap(page, "ttl"), page["records"]) == ((1, 5), [])


def test_the_node_filter_comes_after_the_ttl(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    page = page_of(api, old, 0, node="me")
    assert (gap(page, "ttl"), page["records"], page["next_from_seq"]) == ((1, 5), [], 5)


@pytest.mark.slow
def test_records_expire_by_their_ts_while_nobody_looks(api: Api, topic: str) -> None:
    put(api, topic, ttl_ms=700)
    ok(api.append(topic, 1, 2))
    time.sleep(0.4)
    ok(api.append(topic, 3))
    time.sleep(0.8)
    assert gap(page_of(api, topic, 0), "ttl") == (1, 3)
    assert floors(api, topic) == {"head_seq": 3, "earliest_seq": 4, "count": 0, "bytes": 0}


@pytest.mark.slow
def test_no_read_shows_what_had_expired_when_it_was_asked(api: Api, topic: str) -> None:
    put(api, topic, ttl_ms=300)
    until = time.monotonic() + 1.5
    number, floor = 0, 1
    while time.monotonic() < until:
        number += 1
        ok(api.append(topic, number))
        asked = time.time_ns() // 1_000_000
        page = page_of(api, topic, 0)
        assert all(asked - record["$ts"] <= 300 for record in page["records"])
        assert page["earliest_seq"] >= floor, "the floor went back"
        floor = page["earliest_seq"]
        assert seqs(page) == list(range(floor, number + 1))
        assert gap(page, "ttl") == ((1, floor - 1) if floor > 1 else None)


# --- restarts


def _scenes(api: Api, durability: str) -> dict[str, str]:
    """Topics with floors of every kind; what they are about, by name."""
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

    aged = scene("ttl", "expired records, the TTL relaxed")
    mixed = scene("mixed", "cap first, then TTL")
    unseen = scene("unseen", "expired records that nobody has looked for, the TTL relaxed")
    scene("cap", "a cap that holds", cap_records=4)
    put(api, scene("relaxed", "a cap that was relaxed", cap_records=4), cap_records=0)
    put(api, scene("tightened", "a cap that came later"), cap_records=4)
    put(api, scene("both-ways", "a cap that came and went"), cap_records=4)
    put(api, f"{durability}.both-ways", cap_records=9)
    erase(api, scene("deleted", "a cap, then a delete", cap_records=4), before_seq=9)
    erase(api, scene("emptied", "a cap, then everything deleted", cap_records=4), before_seq=99)
    holes = scene("holes", "deletes between, then a cap")
    for number in (2, 5, 6):
        erase(api, holes, match=f"t{number}")
    put(api, holes, cap_records=4)
    scene("bytes", "a cap of bytes", cap_bytes=500)
    scene("full", "a topic that rejects", cap_records=10, discard="reject")
    again = scene("again", "made again", cap_records=3)
    ok(api.delete(again))
    scene("again", "made again", 5, cap_records=3)
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
    """What every scene looked like before a restart, and a client of the restarted server."""
    path: Path = tmp_path_factory.mktemp("retention") / "data"
    with Server(path, shards=1) as server:
        with Api(server.address) as api:
            scenes = [*_scenes(api, "fsync"), *_scenes(api, "disk")]
            before = {name: everything(api, name) for name in scenes}
        server.stop() if request.param == "stop" else server.kill()
        server.start()
        with Api(server.address) as api:
            yield api, before


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_floors_and_tombstones_outlive_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, before = restarted
    mine = {name: seen for name, seen in before.items() if name.startswith(f"{durability}.")}
    assert {name: everything(api, name) for name in mine} == mine


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_full_topic_is_full_after_a_restart_and_knows_its_keys(
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
def test_a_cap_goes_on_after_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, _before = restarted
    topic = f"{durability}.holes"
    ok(api.append(topic, "eleventh"))
    page = page_of(api, topic, 0)
    assert seqs(page) == [8, 9, 10, 11]
    assert gap(page, "cap") == (1, 7)
