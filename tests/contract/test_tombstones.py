"""What a reader is told about evicted and deleted records, also in a long poll (§3.3)."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.contract.retained import agrees, erased, floors, gap, page_of, put, seqs
from tests.support.api import Api, ok
from tests.support.model import Kept, TopicModel
from tests.support.server import Server

pytestmark = pytest.mark.slow


# --- tombstones and deletes


def test_a_deleted_gap_is_silent_and_an_evicted_one_is_told(api: Api, topic: str) -> None:
    model = TopicModel()
    ok(api.append(topic, *range(10)), 201)
    model.append(map(Kept, range(10)))
    assert erased(api, topic, before_seq=4) == model.delete(4) == 3
    agrees(api, topic, model)
    put(api, topic, cap_records=5)
    model.set_cap(5)
    assert (model.evict_floor, model.earliest_seq) == (6, 6)
    agrees(api, topic, model)
    assert erased(api, topic, before_seq=9) == model.delete(9) == 3
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
    assert erased(api, topic, match="gone") == model.delete(match="gone") == 4
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
    assert erased(api, topic, before_seq=100) == model.delete(100) == cap
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
            assert erased(api, topic, **body) == model.delete(**body), f"{body} of {model}"
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
