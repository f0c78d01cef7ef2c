"""How evicted, expired and deleted records are reported to readers (§1.1, §3.3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.retained import erased, floors, gap, page_of, put, seqs
from tests.support.api import Api, ok, refused
from tests.support.server import Server

pytestmark = pytest.mark.slow

# --- tombstones and deletes


def test_one_tombstone_is_reported_and_the_next_pages_follow_it(api: Api, topic: str) -> None:
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


def test_a_loss_is_reported_despite_the_node_filter(api: Api, topic: str) -> None:
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


# --- long polls


def test_a_long_poll_below_the_floor_returns_immediately(api: Api, topic: str) -> None:
    put(api, topic, cap_records=2)
    ok(api.append(topic, *range(5)))
    erased(api, topic, before_seq=6)
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
    erased(api, topic, before_seq=6)
    sent = time.monotonic()
    page = page_of(api, topic, 1, wait_ms=300)
    assert time.monotonic() - sent >= 0.295
    assert (gap(page), page["records"], page["next_from_seq"], page["caught_up"]) == (
        None,
        [],
        5,
        True,
    )


def test_a_write_larger_than_the_cap_ends_a_long_poll_with_the_gap(
    server: Server, api: Api, topic: str
) -> None:
    put(api, topic, cap_records=4)
    ok(api.append(topic, *range(5)))

    def poll() -> Any:
        with Api(server.address, timeout_s=40) as own:
            return page_of(own, topic, 5, wait_ms=20_000)

    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(poll)
        time.sleep(0.2)  # a parked poll cannot be detected from outside
        ok(api.append(topic, *range(10)))
        page = pending.result(30)
    assert (gap(page, "cap"), seqs(page)) == ((6, 11), [12, 13, 14, 15])


OLD_S = 6.5
TTL_MS = 6000  # between the ages of the old records and of records that a test adds
OLD = [{"data": number, "tag": f"t{number}", "node": "me"} for number in range(1, 6)]


@pytest.fixture(scope="module")
def old_topics(server: Server, new_name: Callable[[], str]) -> tuple[list[str], float]:
    """Topics with five records each and no TTL, and the time of the writes. The tests share them,
    so that they wait only once until the records are old.
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
    """A topic whose records 1 to 5 are older than ``TTL_MS``."""
    names, born = old_topics
    time.sleep(max(0.0, born + OLD_S - time.monotonic()))
    return names.pop()


def test_expired_records_are_absent_from_reads_and_state(api: Api, old: str) -> None:
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


@pytest.mark.parametrize(
    "is_read_before", [True, False], ids=["3.3 read before", "3.3 not read before"]
)
@pytest.mark.parametrize("ttl_ms", [0, 3_600_000])
def test_a_longer_ttl_restores_no_expired_record(
    api: Api, old: str, is_read_before: bool, ttl_ms: int
) -> None:
    put(api, old, ttl_ms=TTL_MS)
    if is_read_before:
        assert gap(page_of(api, old, 0), "ttl") == (1, 5)
    put(api, old, ttl_ms=ttl_ms)
    assert floors(api, old) == {"head_seq": 5, "earliest_seq": 6, "count": 0, "bytes": 0}
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)
    ok(api.append(old, "new"))
    page = page_of(api, old, 0)
    assert (gap(page, "ttl"), seqs(page)) == ((1, 5), [6])


def test_expired_records_free_capacity_in_a_topic_that_rejects(api: Api, old: str) -> None:
    put(api, old, cap_records=5, discard="reject")
    refused(api.append(old, 6), 422, "topic_full")
    put(api, old, ttl_ms=TTL_MS)
    ok(api.append(old, 6, 7, 8, 9, 10))
    refused(api.append(old, 11), 422, "topic_full")


def test_losses_by_cap_and_ttl_together_are_reported_as_mixed(api: Api, old: str) -> None:
    put(api, old, cap_records=3)
    assert gap(page_of(api, old, 0), "cap") == (1, 2)
    put(api, old, ttl_ms=TTL_MS)
    assert gap(page_of(api, old, 0), "mixed") == (1, 5)
    assert gap(page_of(api, old, 2), "ttl", "mixed") == (3, 5)
    assert gap(page_of(api, old, 5)) is None


def test_a_ttl_gap_includes_deleted_records(api: Api, old: str) -> None:
    assert erased(api, old, before_seq=3) == 2
    put(api, old, ttl_ms=TTL_MS)
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)


def test_expired_records_cannot_be_deleted(api: Api, old: str) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert erased(api, old, match=["tag", "Glob", "t*"]) == 0
    assert erased(api, old, before_seq=100) == 0
    assert gap(page_of(api, old, 0), "ttl") == (1, 5)


def test_a_repeated_key_gets_its_response_even_if_its_record_has_expired(
    api: Api, old: str
) -> None:
    put(api, old, ttl_ms=TTL_MS)
    assert page_of(api, old, 0)["records"] == []
    again = ok(api.append(old, "other", idempotency_key="k1"))
    assert (again["deduped"], again["seqs"], again["head_seq"]) == (True, [2], 2)


@pytest.mark.slow
def test_records_expire_by_their_ts_without_any_request(api: Api, topic: str) -> None:
    put(api, topic, ttl_ms=700)
    ok(api.append(topic, 1, 2))
    time.sleep(0.4)
    ok(api.append(topic, 3))
    time.sleep(0.8)
    assert gap(page_of(api, topic, 0), "ttl") == (1, 3)
    assert floors(api, topic) == {"head_seq": 3, "earliest_seq": 4, "count": 0, "bytes": 0}


@pytest.mark.slow
def test_no_read_returns_records_that_expired_before_the_request(api: Api, topic: str) -> None:
    put(api, topic, ttl_ms=300)
    until = time.monotonic() + 1.5
    number, floor = 0, 1
    while time.monotonic() < until:
        number += 1
        ok(api.append(topic, number))
        requested_ms = time.time_ns() // 1_000_000
        page = page_of(api, topic, 0)
        assert all(requested_ms - record["$ts"] <= 300 for record in page["records"])
        assert page["earliest_seq"] >= floor, "the floor decreased"
        floor = page["earliest_seq"]
        assert seqs(page) == list(range(floor, number + 1))
        assert gap(page, "ttl") == ((1, floor - 1) if floor > 1 else None)
