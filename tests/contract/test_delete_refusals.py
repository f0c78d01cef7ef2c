"""Deletes of records that are refused: wrong bodies, paths and methods, and keys without the
right (§0.2, §5).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.deleting import erase
from tests.contract.retained import agrees
from tests.support.api import Api, ok, refused
from tests.support.model import TopicModel
from tests.support.server import Server

# --- what is refused

REFUSED = [
    "{}",
    '{"tag":"a"}',
    '{"match":null}',
    '{"before_seq":null}',
    '{"before_seq":null,"match":null}',
    '{"before_seq":-1}',
    '{"before_seq":1.0}',
    '{"before_seq":1.5}',
    '{"before_seq":1e1}',
    '{"before_seq":"5"}',
    '{"before_seq":true}',
    '{"before_seq":[5]}',
    '{"before_seq":{}}',
    '{"before_seq":18446744073709551616}',
    '{"before_seq":-1,"match":"a"}',
    '{"before_seq":"5","match":"a"}',
    '{"match":5}',
    '{"match":true}',
    '{"match":{}}',
    '{"match":{"tag":"a"}}',
    '{"match":[]}',
    '{"match":["tag"]}',
    '{"match":["tag","Eq"]}',
    '{"match":["tag","Eq","a","b"]}',
    '{"match":["tag","Eq",5]}',
    '{"match":["tag","Eq",null]}',
    '{"match":["tag","Eq",["a"]]}',
    '{"match":["tag","eq","a"]}',
    '{"match":["tag","glob","a*"]}',
    '{"match":["tag","Regex","a"]}',
    '{"match":["tag","In",["a"]]}',
    '{"match":["tag","","a"]}',
    '{"match":["tag",5,"a"]}',
    '{"match":["node","Eq","a"]}',
    '{"match":["$tag","Eq","a"]}',
    '{"match":["Tag","Eq","a"]}',
    '{"match":[5,"Eq","a"]}',
    '{"match":["tag","Glob","a"]}',
    '{"match":["tag","Glob",""]}',
    '{"match":["tag","Glob","*a"]}',
    '{"match":["tag","Glob","a*b"]}',
    '{"match":["tag","Glob","a*b*"]}',
    '{"match":["tag","Glob","**"]}',
    '{"match":["tag","Glob","a**"]}',
    '{"match":["tag","Glob",5]}',
    '{"match":["tag","Glob",null]}',
    '{"match":["tag","Glob","a?"]}',
    '{"match":["tag","Eq","a"],"before_seq":-5}',
    '{"match":5,"before_seq":5}',
    '{"match":["And",["tag","Eq","a"],["tag","Eq","b"]]}',
    "[]",
    "null",
    "5",
    '"a"',
    "",
    "{",
    '{"match":"a"',
    '{"match":"a"} x',
    "{'match':'a'}",
    '{"before_seq":NaN}',
]


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: f"5 {body}")
def test_a_wrong_body_is_a_400_and_deletes_nothing(
    api: Api, topic: str, filled: TopicModel, body: str
) -> None:
    refused(erase(api, topic, body.encode()), 400, "invalid_request")
    agrees(api, topic, filled, [0])


def test_broken_utf8_is_a_400(api: Api, topic: str, filled: TopicModel) -> None:
    for body in (
        b'{"match":"\xff"}',
        b'{"match":["tag","Glob","\xe9*"]}',
        b'{"match":["tag","Eq","\xed\xa0\x80"]}',
    ):
        refused(erase(api, topic, body), 400, "invalid_request")
    agrees(api, topic, filled, [0])


def test_an_absent_topic_is_a_404_and_is_not_made(api: Api, topic: str) -> None:
    for _ in range(2):
        error = refused(erase(api, topic, {"before_seq": 5}), 404, "topic_not_found")
        assert error["detail"]["topic"] == topic
    refused(erase(api, topic, {}), 400, "invalid_request")


@pytest.mark.parametrize(
    "name", ["-x", "a%20b", "a%0A", "%2e", "x" * 256], ids=lambda name: f"1.1 {name[:10]}"
)
def test_a_bad_name_is_a_400(api: Api, name: str) -> None:
    refused(erase(api, name, {"before_seq": 5}), 400, "invalid_request")


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "multipart/form-data", "", "application/jsonx"],
    ids=lambda kind: f"0.3 {kind}",
)
def test_another_content_type_is_a_415(api: Api, topic: str, filled: TopicModel, kind: str) -> None:
    answer = api.call(
        "POST", f"/v0/topics/{topic}/delete", b'{"match":"a"}', {"Content-Type": kind}
    )
    refused(answer, 415, "unsupported_media_type")
    agrees(api, topic, filled, [0])


def test_a_charset_is_fine(api: Api, topic: str, filled: TopicModel) -> None:
    answer = api.call(
        "POST",
        f"/v0/topics/{topic}/delete",
        b'{"match":"a"}',
        {"Content-Type": "application/json; charset=utf-8"},
    )
    assert ok(answer)["deleted"] == 3


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_is_a_405(api: Api, topic: str, filled: TopicModel, method: str) -> None:
    answer = api.call(
        method, f"/v0/topics/{topic}/delete", b"{}" if method in ("PUT", "PATCH") else None
    )
    refused(answer, 405, "method_not_allowed")
    assert "POST" in answer.headers["allow"]
    agrees(api, topic, filled, [0])


@pytest.mark.parametrize("path", ["delete/", "delete/x", "Delete", "deletes"])
def test_a_path_nearby_is_a_404(api: Api, topic: str, filled: TopicModel, path: str) -> None:
    refused(api.call("POST", f"/v0/topics/{topic}/{path}", {"match": "a"}), 404, "not_found")


# --- who may delete (§0.2)

KEYS = (
    "full,reader:read,writer:write,deleter:delete,admin:admin,all-but:r+w+a,"
    "mine:d:t42:|shared.,t42::t42:"
)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(
        tmp_path_factory.mktemp("guarded-delete") / "data", api_keys=KEYS, shards=1
    ) as server:
        with Api(server.address, token="full") as api:
            for name in ("other", "t42:a", "shared.x", "t4"):
                ok(api.append(name, records=[{"data": 1, "tag": "other"}]), 201)
        yield server


WHO = [
    ("full", "other", True),
    ("reader", "other", False),
    ("writer", "other", False),
    ("admin", "other", False),
    ("all-but", "other", False),
    ("deleter", "other", True),
    ("mine", "t42:a", True),
    ("mine", "shared.x", True),
    ("mine", "t4", False),
    ("mine", "other", False),
    ("t42", "t42:a", True),
    ("t42", "shared.x", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "name", "allowed"), WHO, ids=[f"0.2 {token} {name}" for token, name, _ in WHO]
)
def test_deleting_records_needs_the_scope_and_the_prefix(
    guarded: Server, token: str, name: str, allowed: bool
) -> None:
    with Api(guarded.address, token=token) as api:
        for body in (
            {"match": "nothing-has-this-tag"},
            {"before_seq": 1},
            {"match": "other", "before_seq": 0},
        ):
            answer = erase(api, name, body)
            if allowed:
                assert ok(answer)["deleted"] == 0
            else:
                refused(answer, 403, "forbidden")


@pytest.mark.slow
def test_the_checks_come_in_their_order(guarded: Server) -> None:
    with Api(guarded.address) as api:
        refused(erase(api, "other", b"x"), 401, "unauthorized")
    with Api(guarded.address, token="mine") as api:
        refused(api.call("PUT", "/v0/topics/other/delete", b"{}"), 405, "method_not_allowed")
        refused(erase(api, "absent", {"before_seq": 1}), 403, "forbidden")
        refused(erase(api, "other", b"x"), 403, "forbidden")
        refused(erase(api, "t42:absent", b"x"), 400, "invalid_request")
        answer = api.call(
            "POST", "/v0/topics/t42:absent/delete", b"{}", {"Content-Type": "text/plain"}
        )
        refused(answer, 415, "unsupported_media_type")
        refused(erase(api, "t42:absent", {"match": "x"}), 404, "topic_not_found")
