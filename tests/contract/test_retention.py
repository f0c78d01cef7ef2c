"""Caps: which records stay, and what a PUT does to those that are there (§0.10, §1.1, §2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contract.retained import (
    CLASSES,
    RECORDS,
    agrees,
    everything,
    floors,
    gap,
    page_of,
    put,
    seqs,
    sizes,
)
from tests.support.api import Api, ok
from tests.support.model import Kept, TopicModel

pytestmark = pytest.mark.slow

MB = 1_000_000


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
