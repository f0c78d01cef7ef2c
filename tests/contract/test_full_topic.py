"""A topic that rejects what its caps have no room for (§0.10, §2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.retained import (
    CLASSES,
    RECORDS,
    agrees,
    erased,
    everything,
    floors,
    gap,
    page_of,
    put,
    seqs,
    sizes,
)
from tests.support.api import Api, ok, refused
from tests.support.model import Kept, TopicModel
from tests.support.server import Server

pytestmark = pytest.mark.slow


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
    erased(api, topic, before_seq=2)
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
    erased(api, topic, before_seq=3)
    # Only a successful append keeps its key.
    assert ok(api.append(topic, 3, idempotency_key="other"))["deduped"] is False
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
    assert erased(api, topic, match="t2") == model.delete(match="t2")
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
