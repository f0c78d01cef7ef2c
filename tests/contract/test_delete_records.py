"""POST /v0/topics/:topic/delete (§5): what is deleted."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.contract.deleting import ODD_TAGS, TAGS, U64_MAX, erase, fill
from tests.contract.retained import agrees, erased, floors, page_of, seqs
from tests.support.api import Api, ok, refused
from tests.support.model import Kept, TopicModel

# --- what is deleted

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
    ("body", "gone"), BODIES, ids=[f"5 {json.dumps(body)}" for body, _ in BODIES]
)
def test_a_delete_removes_what_its_body_says(
    api: Api, topic: str, filled: TopicModel, body: dict[str, Any], gone: list[int]
) -> None:
    answer = ok(erase(api, topic, body))
    assert filled.delete(body.get("before_seq"), body.get("match")) == len(gone)
    assert answer["topic"] == topic
    assert answer["deleted"] == len(gone)
    assert {
        name: answer[name] for name in ("head_seq", "earliest_seq", "count", "bytes")
    } == floors(api, topic)
    agrees(api, topic, filled)
    assert sorted({*range(1, 11)} - {*filled.live}) == gone
    assert erased(api, topic, **body) == 0, "the second time there is nothing left"
    agrees(api, topic, filled)


def test_bytes_go_with_the_records(api: Api, topic: str) -> None:
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


def test_earliest_seq_passes_a_prefix_only_when_it_is_wholly_dead(api: Api, topic: str) -> None:
    model = fill(api, topic, ["x", "y", "y", "z", "x", "z"])
    for match, earliest in (("y", 1), ("x", 4), ("z", 7)):
        answer = ok(erase(api, topic, {"match": match}))
        assert answer["deleted"] == model.delete(match=match)
        assert answer["earliest_seq"] == earliest == model.earliest_seq
        agrees(api, topic, model)


def test_deletes_add_up_and_count_only_live_records(
    api: Api, topic: str, filled: TopicModel
) -> None:
    for body, count in (
        ({"match": "b"}, 2),
        ({"before_seq": 6}, 4),
        ({"match": ["tag", "Glob", "*"]}, 3),
        ({"before_seq": 99}, 1),
    ):
        assert erased(api, topic, **body) == count == filled.delete(**body)
        agrees(api, topic, filled)


def test_an_empty_topic_has_nothing_to_delete(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    for body in ({"before_seq": 5}, {"match": "a"}):
        answer = ok(erase(api, topic, body))
        assert [
            answer[name] for name in ("deleted", "earliest_seq", "head_seq", "count", "bytes")
        ] == [0, 1, 0, 0, 0]


@pytest.mark.parametrize(
    "body",
    [{"before_seq": U64_MAX}, {"before_seq": 50}, {"match": "a"}, {"match": ["tag", "Glob", "*"]}],
    ids=str,
)
def test_a_delete_is_no_standing_filter(
    api: Api, topic: str, filled: TopicModel, body: dict[str, Any]
) -> None:
    assert erased(api, topic, **body) == filled.delete(**body)
    ok(api.append(topic, records=[{"data": "later", "tag": "a"}]))
    filled.append([Kept("later", "a")])
    agrees(api, topic, filled)


def test_the_prior_versions_go_and_the_new_one_stays(api: Api, topic: str) -> None:
    model = fill(api, topic, ["msg-123", "msg-12", "msg-123", "msg-1234", "msg-123"])
    assert (
        erased(api, topic, match=["tag", "Eq", "msg-123"], before_seq=5)
        == model.delete(5, "msg-123")
        == 2
    )
    agrees(api, topic, model)


def test_one_topic_at_a_time(api: Api, topic: str) -> None:
    fill(api, topic, ["a", "b"])
    fill(api, f"{topic}.other", ["a", "b"])
    assert erased(api, topic, match="a") == 1
    assert [seqs(page_of(api, name, 0)) for name in (topic, f"{topic}.other")] == [[2], [1, 2]]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_every_class_deletes(api: Api, topic: str, durability: str) -> None:
    model = fill(api, topic, TAGS, config={"durability": durability})
    for body in (
        {"match": ["tag", "Glob", "a*"]},
        {"before_seq": 3},
        {"match": "c", "before_seq": 10},
    ):
        answer = ok(erase(api, topic, body))
        assert answer["deleted"] == model.delete(**body)
        assert answer["performance"].get("fsync_ms", 0) == 0 or durability == "fsync"
        agrees(api, topic, model)


def test_records_of_large_writes_are_deleted_too(api: Api, topic: str) -> None:
    records = [{"data": [number, "x" * 900_000], "tag": f"t{number % 2}"} for number in range(6)]
    ok(api.append(topic, records=records), 201)
    assert erased(api, topic, match="t1") == 3
    assert seqs(page_of(api, topic, 0, max_batch_bytes=8 << 20)) == [1, 3, 5]
    assert floors(api, topic)["bytes"] < 3 * 900_000 + 1000
    assert erased(api, topic, before_seq=4) == 2
    page = page_of(api, topic, 0, max_batch_bytes=8 << 20)
    assert [record["data"][0] for record in page["records"]] == [4]


@pytest.mark.slow
def test_ten_thousand_records_go_at_once(api: Api, topic: str) -> None:
    model = fill(
        api, topic, [f"{'even' if number % 2 else 'odd'}:{number}" for number in range(10_000)]
    )
    assert (
        erased(api, topic, match=["tag", "Glob", "odd:*"])
        == model.delete(match=["tag", "Glob", "odd:*"])
        == 5000
    )
    assert [record["$seq"] for record in api.read(topic)] == list(model.live)
    assert erased(api, topic, match="even:9999") == model.delete(match="even:9999") == 1
    assert erased(api, topic, before_seq=9000) == model.delete(9000)
    assert [record["$seq"] for record in api.read(topic)] == list(model.live)
    assert floors(api, topic)["count"] == len(model.live)


def test_a_deduped_answer_is_given_though_its_records_were_deleted(api: Api, topic: str) -> None:
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


def test_a_topic_made_again_knows_nothing_of_former_deletes(
    api: Api, topic: str, filled: TopicModel
) -> None:
    erased(api, topic, match="a")
    ok(api.delete(topic))
    agrees(api, topic, fill(api, topic, TAGS))


# --- tags are text


@pytest.mark.parametrize("escaped", [True, False], ids=["5 as escapes", "5 as they are"])
def test_a_tag_is_matched_as_text_however_it_is_written(
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
def test_a_glob_takes_the_tags_that_begin_with_its_text(api: Api, topic: str, prefix: str) -> None:
    ok(api.append(topic, records=[{"data": tag, "tag": tag} for tag in ODD_TAGS]), 201)
    gone = [tag for tag in ODD_TAGS if tag.startswith(prefix)]
    body = json.dumps({"match": ["tag", "Glob", prefix + "*"]}, ensure_ascii=False).encode()
    assert ok(erase(api, topic, body))["deleted"] == len(gone)
    assert [record["data"] for record in api.read(topic)] == [
        tag for tag in ODD_TAGS if tag not in gone
    ]


def test_a_glob_may_be_written_in_escapes(api: Api, topic: str) -> None:
    ok(api.append(topic, records=[{"data": 1, "tag": 'é"x'}, {"data": 2, "tag": "e"}]), 201)
    assert (
        ok(erase(api, topic, rb'{"match":["\u0074ag","Gl\u006fb","\u00e9\u0022\u002a"]}'))[
            "deleted"
        ]
        == 1
    )
