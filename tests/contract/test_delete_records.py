"""Deletes of records (§5): the removed records, the view of readers (§3.2, §3.3), and the
state after a restart.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.deleting import ODD_TAGS, TAGS, U64_MAX, erase, fill
from tests.contract.retained import (
    assert_matches_model,
    erased,
    floors,
    observable_state,
    page_of,
    seqs,
)
from tests.support.api import Api, ok, refused
from tests.support.model import TopicModel
from tests.support.server import Server

# --- deleted records

BODIES: list[tuple[dict[str, Any], list[int]]] = [
    ({"before_seq": 0}, []),
    ({"before_seq": 1}, []),
    ({"before_seq": 2}, [1]),
    ({"before_seq": 5}, [1, 2, 3, 4]),
    ({"before_seq": 10}, [*range(1, 10)]),
    ({"before_seq": 11}, [*range(1, 11)]),
    ({"before_seq": 12}, [*range(1, 11)]),
    ({"before_seq": U64_MAX}, [*range(1, 11)]),
    ({"match": "a"}, [1, 5, 10]),
    ({"match": ["tag", "Eq", "a"]}, [1, 5, 10]),
    ({"match": "ab"}, [4]),
    ({"match": "A"}, []),
    ({"match": "nope"}, []),
    ({"match": "a*"}, []),
    ({"match": ["tag", "Eq", "a*"]}, []),
    ({"match": ["tag", "Glob", "a*"]}, [1, 4, 5, 8, 10]),
    ({"match": ["tag", "Glob", "ab*"]}, [4, 8]),
    ({"match": ["tag", "Glob", "abc*"]}, [8]),
    ({"match": ["tag", "Glob", "abcd*"]}, []),
    ({"match": ["tag", "Glob", "*"]}, [1, 2, 4, 5, 7, 8, 9, 10]),
    ({"match": "a", "before_seq": 5}, [1]),
    ({"match": "a", "before_seq": 6}, [1, 5]),
    ({"match": ["tag", "Glob", "*"], "before_seq": 4}, [1, 2]),
    ({"match": ["tag", "Glob", "a*"], "before_seq": U64_MAX}, [1, 4, 5, 8, 10]),
    ({"match": "a", "before_seq": 0}, []),
    ({"match": "a", "unknown": 1}, [1, 5, 10]),
]


@pytest.mark.parametrize(
    ("body", "deleted_seqs"), BODIES, ids=[f"5 {json.dumps(body)}" for body, _ in BODIES]
)
def test_a_delete_removes_the_records_that_its_body_selects(
    api: Api, topic: str, filled: TopicModel, body: dict[str, Any], deleted_seqs: list[int]
) -> None:
    answer = ok(erase(api, topic, body))
    assert filled.delete(body.get("before_seq"), body.get("match")) == len(deleted_seqs)
    assert answer["topic"] == topic
    assert answer["deleted"] == len(deleted_seqs)
    assert {
        name: answer[name] for name in ("head_seq", "earliest_seq", "count", "bytes")
    } == floors(api, topic)
    assert_matches_model(api, topic, filled)
    assert sorted({*range(1, 11)} - {*filled.live}) == deleted_seqs
    assert erased(api, topic, **body) == 0, "the second delete found records"
    assert_matches_model(api, topic, filled)


def test_deleted_records_no_longer_count_as_bytes(api: Api, topic: str) -> None:
    costs: list[int] = []
    for size in (10, 1000, 100, 4000):
        before = floors(api, topic)["bytes"] if costs else 0
        answer = api.append(
            topic, records=[{"data": "x" * size, "tag": f"t{size}", "meta": {"size": size}}]
        )
        ok(answer, answer.status)
        costs.append(floors(api, topic)["bytes"] - before)
    assert erased(api, topic, match="t1000") == 1
    assert floors(api, topic) == {
        "head_seq": 4,
        "earliest_seq": 1,
        "count": 3,
        "bytes": sum(costs) - costs[1],
    }
    assert erased(api, topic, match="t10") == 1
    assert floors(api, topic) == {
        "head_seq": 4,
        "earliest_seq": 3,
        "count": 2,
        "bytes": costs[2] + costs[3],
    }
    assert erased(api, topic, before_seq=100) == 2
    assert floors(api, topic) == {"head_seq": 4, "earliest_seq": 5, "count": 0, "bytes": 0}


def test_a_delete_in_an_empty_topic_removes_0_records(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    for body in ({"before_seq": 5}, {"match": "a"}):
        answer = ok(erase(api, topic, body))
        assert [
            answer[name] for name in ("deleted", "earliest_seq", "head_seq", "count", "bytes")
        ] == [0, 1, 0, 0, 0]


def test_a_delete_affects_only_its_topic(api: Api, topic: str) -> None:
    fill(api, topic, ["a", "b"])
    fill(api, f"{topic}.other", ["a", "b"])
    assert erased(api, topic, match="a") == 1
    assert [seqs(page_of(api, name, 0)) for name in (topic, f"{topic}.other")] == [[2], [1, 2]]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_records_of_every_durability_class_can_be_deleted(
    api: Api, topic: str, durability: str
) -> None:
    model = fill(api, topic, TAGS, config={"durability": durability})
    for body in (
        {"match": ["tag", "Glob", "a*"]},
        {"before_seq": 3},
        {"match": "c", "before_seq": 10},
    ):
        answer = ok(erase(api, topic, body))
        assert answer["deleted"] == model.delete(**body)
        assert answer["performance"].get("fsync_ms", 0) == 0 or durability == "fsync"
        assert_matches_model(api, topic, model)


def test_records_of_large_writes_can_be_deleted(api: Api, topic: str) -> None:
    records = [{"data": [number, "x" * 900_000], "tag": f"t{number % 2}"} for number in range(6)]
    ok(api.append(topic, records=records), 201)
    assert erased(api, topic, match="t1") == 3
    assert seqs(page_of(api, topic, 0, max_batch_bytes=8 << 20)) == [1, 3, 5]
    assert floors(api, topic)["bytes"] < 3 * 900_000 + 1000
    assert erased(api, topic, before_seq=4) == 2
    page = page_of(api, topic, 0, max_batch_bytes=8 << 20)
    assert [record["data"][0] for record in page["records"]] == [4]


def test_a_repeated_key_gets_its_response_even_if_its_records_were_deleted(
    api: Api, topic: str
) -> None:
    ok(api.append(topic, 1, 2, idempotency_key="k"), 201)
    assert erased(api, topic, before_seq=9) == 2
    again = ok(api.append(topic, 1, 2, idempotency_key="k"))
    assert (again["deduped"], again["seqs"], again["head_seq"], again["count"]) == (
        True,
        [1, 2],
        2,
        2,
    )
    assert floors(api, topic)["count"] == 0
    assert ok(api.append(topic, 3))["seqs"] == [3]


def test_if_empty_counts_live_records(api: Api, topic: str, filled: TopicModel) -> None:
    refused(api.delete(topic, if_empty="true"), 409, "topic_not_empty")
    erased(api, topic, before_seq=99)
    assert ok(api.delete(topic, if_empty="true"))["deleted"] is True


# --- tags are compared as text


@pytest.mark.parametrize("escaped", [True, False], ids=["5 as escapes", "5 as they are"])
def test_a_tag_is_matched_as_text_regardless_of_its_json_escapes(
    api: Api, topic: str, escaped: bool
) -> None:
    def raw(value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=escaped).encode()

    other_way = json.dumps(
        {"records": [{"data": tag, "tag": tag} for tag in ODD_TAGS]}, ensure_ascii=not escaped
    ).encode()
    ok(api.call("POST", f"/v0/topics/{topic}", other_way), 201)
    left = list(ODD_TAGS)
    for tag in random.Random(4).sample(ODD_TAGS, len(ODD_TAGS)):
        assert ok(erase(api, topic, raw({"match": ["tag", "Eq", tag]})))["deleted"] == 1, repr(tag)
        left.remove(tag)
        assert [record["data"] for record in api.read(topic)] == left


@pytest.mark.parametrize(
    "prefix",
    [*(tag for tag in ODD_TAGS if "*" not in tag), "\\u", "ax"],
    ids=lambda prefix: f"5 {prefix!a}*",
)
def test_a_glob_matches_tags_that_begin_with_its_text(api: Api, topic: str, prefix: str) -> None:
    ok(api.append(topic, records=[{"data": tag, "tag": tag} for tag in ODD_TAGS]), 201)
    matching_tags = [tag for tag in ODD_TAGS if tag.startswith(prefix)]
    body = json.dumps({"match": ["tag", "Glob", prefix + "*"]}, ensure_ascii=False).encode()
    assert ok(erase(api, topic, body))["deleted"] == len(matching_tags)
    assert [record["data"] for record in api.read(topic)] == [
        tag for tag in ODD_TAGS if tag not in matching_tags
    ]


def test_a_glob_may_contain_json_escapes(api: Api, topic: str) -> None:
    ok(api.append(topic, records=[{"data": 1, "tag": 'é"x'}, {"data": 2, "tag": "e"}]), 201)
    assert (
        ok(erase(api, topic, rb'{"match":["\u0074ag","Gl\u006fb","\u00e9\u0022\u002a"]}'))[
            "deleted"
        ]
        == 1
    )


# --- reads around deleted records


def read_all(api: Api, topic: str, **fields: Any) -> list[int]:
    """Return every seq from pages that must continue and report no loss."""
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
def test_pages_skip_deleted_records_without_a_tombstone(
    api: Api, topic: str, filled: TopicModel, limit: int
) -> None:
    erased(api, topic, match=["tag", "Glob", "a*"])
    filled.delete(match=["tag", "Glob", "a*"])
    assert read_all(api, topic, limit=limit) == list(filled.live) == [2, 3, 6, 7, 9]


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
def test_the_node_filter_works_in_topics_with_deleted_records(
    api: Api, topic: str, node: Any, seen: list[int], limit: int
) -> None:
    nodes = ["x", "y", "x", "y", None, "x", "x", "long", "y"]
    records = [
        {"data": number, "tag": "deleted" if number in (1, 3, 4, 6, 9) else "kept"}
        | ({"node": sender} if sender else {})
        for number, sender in enumerate(nodes, 1)
    ]
    ok(api.append(topic, records=records), 201)
    assert erased(api, topic, match="deleted") == 5
    assert read_all(api, topic, node=node, limit=limit) == seen


# --- concurrent appends


def test_a_delete_removes_earlier_records_and_never_later_ones(
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
    deletion = ok(erase(api, topic, {"match": "x"}))
    deleted.set()
    while len(sent_after) < 20:
        done.wait(0.005)
    done.set()
    for writer in writers:
        writer.join(20)
    left = {record["$seq"] for record in api.read(topic)}
    assert left.isdisjoint(known)
    assert sent_after <= left
    # The head advances while the delete becomes durable. The delete removes all records up to the
    # head at its start.
    assert sorted(left) == list(range(deletion["deleted"] + 1, max(acknowledged) + 1)), (
        "the remaining seqs are not one range up to the head"
    )
    assert max(known) <= deletion["deleted"] <= deletion["head_seq"]


SMALL_LOG = 64 << 10


def _scenes(api: Api, durability: str) -> list[str]:
    """Topics with deletes of every kind. Some of the deleted records are in sealed segments."""

    def scene(name: str, tags: list[str | None], size: int = 0) -> str:
        full = f"{durability}.{name}"
        answer = api.put(full, {"durability": durability})
        ok(answer, answer.status)
        for number, tag in enumerate(tags, 1):
            record = {"data": [number, "x" * size]} | ({} if tag is None else {"tag": tag})
            ok(api.append(full, records=[record], idempotency_key=f"k{number}"))
        return full

    names = [scene(name, TAGS) for name in ("seq", "eq", "glob", "both", "all", "later", "twice")]
    erased(api, names[0], before_seq=5)
    erased(api, names[1], match="a")
    erased(api, names[2], match=["tag", "Glob", "a*"])
    erased(api, names[3], match="a", before_seq=6)
    erased(api, names[4], before_seq=99)
    erased(api, names[5], match=["tag", "Glob", "*"])
    ok(api.append(names[5], records=[{"data": "later", "tag": "a"}]))
    erased(api, names[6], match="b")
    erased(api, names[6], match="c")
    large = scene("sealed", [f"{number % 4}:{number}" for number in range(60)], 8000)
    erased(api, large, match=["tag", "Glob", "1:*"])
    erased(api, large, match="2:2")
    front = scene("front", [f"{number % 4}:{number}" for number in range(40)], 8000)
    erased(api, front, before_seq=20)
    odd = scene("odd", [tag for tag in ODD_TAGS if tag])
    for tag in ODD_TAGS[::2]:
        erased(api, odd, match=tag)
    return [*names, large, front, odd]


@pytest.fixture(scope="module", params=["stop", "kill"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, Any]]]:
    """Every scene as observed before a restart, and the restarted server. Its log files are small,
    so that most of them are sealed.
    """
    path: Path = tmp_path_factory.mktemp("deletes") / "data"
    with Server(path, shards=1, wal_file_bytes=SMALL_LOG) as server:
        with Api(server.address) as api:
            before = {
                name: observable_state(api, name)
                for name in [*_scenes(api, "fsync"), *_scenes(api, "disk")]
            }
        server.restart(request.param)
        yield server, before


@pytest.mark.slow
def test_deletes_survive_a_restart_and_more_records_can_be_deleted_after_it(
    restarted: tuple[Server, dict[str, Any]],
) -> None:
    server, before = restarted
    with Api(server.address) as api:
        assert {name: observable_state(api, name) for name in before} == before
        for durability in ("fsync", "disk"):
            for body in ({"match": "a"}, {"match": ["tag", "Glob", "a*"]}):
                assert erased(api, f"{durability}.glob", **body) == 0
            assert erased(api, f"{durability}.eq", match="b") == 2
            assert erased(api, f"{durability}.later", match="a") == 1
            assert erased(api, f"{durability}.sealed", match=["tag", "Glob", "3:*"]) == 15
            assert erased(api, f"{durability}.front", before_seq=30) == 10
            assert ok(api.append(f"{durability}.all", "again", idempotency_key="k3"))["seqs"] == [3]
            assert ok(api.append(f"{durability}.all", "new"))["seqs"] == [11]
        after = {name: observable_state(api, name) for name in before}
    with server.again("kill") as api:
        assert {name: observable_state(api, name) for name in after} == after
