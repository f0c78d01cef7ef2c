"""Deleting records (§5), caps and age (§0.10, §3.3) through a real server; the rules themselves are tested in tests/engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.contract.api import Api

NewName = Callable[[], str]


def delete(api: Api, topic: str, body: Any) -> Any:
    return api.call("POST", f"/v0/topics/{topic}/delete", body)


def append(api: Api, topic: str, *records: Any) -> None:
    body = {"records": [record if isinstance(record, dict) else {"data": record} for record in records]}
    assert api.call("POST", f"/v0/topics/{topic}", body).status in (200, 201)


def diff(api: Api, topic: str, **body: Any) -> Any:
    return api.call("POST", f"/v0/topics/{topic}/diff", body).json()


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_delete_answers_with_what_is_left(api: Api, new_name: NewName, durability: str) -> None:
    name = new_name()
    api.put(name, {"durability": durability})
    append(api, name, *({"data": 1, "tag": tag} for tag in ("x", "xy", "z", "x")))
    answer = delete(api, name, {"match": ["tag", "Glob", "x*"], "before_seq": 4})
    assert answer.status == 200
    body = answer.json()
    state = api.get(name).json()
    assert body.pop("performance").keys() == {"server_total_ms"}
    assert body == {"topic": name, "deleted": 2, "earliest_seq": 3, "head_seq": 4, "count": 2, "bytes": state["bytes"]}
    page = diff(api, name)
    assert ([record["$seq"] for record in page["records"]], page["tombstone"], page["caught_up"]) == ([3, 4], None, True)
    assert delete(api, name, {"match": "x"}).json()["deleted"] == 1


@pytest.mark.parametrize("body", [{}, {"match": ["tag", "Glob", "x"]}, {"match": ["node", "Eq", "x"]}, {"before_seq": -1}, []])
def test_a_bad_delete_is_400(api: Api, new_name: NewName, body: Any) -> None:
    name = new_name()
    append(api, name, 1)
    answer = delete(api, name, body)
    assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid_request")


def test_a_delete_from_an_absent_topic_is_404(api: Api, new_name: NewName) -> None:
    answer = delete(api, new_name(), {"before_seq": 1})
    assert (answer.status, answer.json()["error"]["code"]) == (404, "topic_not_found")


def test_a_full_topic_refuses_the_whole_write(api: Api, new_name: NewName) -> None:
    name = new_name()
    api.put(name, {"cap_records": 2, "discard": "reject"})
    append(api, name, 1)
    answer = api.call("POST", f"/v0/topics/{name}", {"records": [{"data": 2}, {"data": 3}]})
    assert (answer.status, answer.json()["error"]["code"]) == (422, "topic_full")
    append(api, name, 2)
    assert api.get(name).json()["count"] == 2


def test_a_cap_evicts_at_once_and_is_told(api: Api, new_name: NewName) -> None:
    name = new_name()
    api.put(name, {"cap_records": 2})
    append(api, name, 1, 2, 3, 4, 5)
    state = api.get(name).json()
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (2, 4, 5)
    page = diff(api, name, from_seq=1)
    assert page["tombstone"] == {"gap_from": 2, "gap_to": 3, "reason": "cap", "missed_estimate": 2, "earliest_seq": 4, "head_seq": 5}
    assert [record["data"] for record in page["records"]] == [4, 5]


def test_old_records_are_gone_from_every_answer(api: Api, new_name: NewName) -> None:
    name = new_name()
    api.put(name, {"ttl_ms": 50})
    append(api, name, 1, 2)
    time.sleep(0.1)
    assert api.get(name).json()["count"] == 0
    page = diff(api, name)
    assert (page["records"], page["tombstone"]["reason"], page["earliest_seq"]) == ([], "ttl", 3)
    listed = api.call("GET", f"/v0/topics?prefix={name}").json()["topics"]
    assert (listed[0]["count"], listed[0]["earliest_seq"]) == (0, 3)
