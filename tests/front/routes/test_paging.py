"""Pages of lists: sizes are clamped, cursors are opaque and say what they hold."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.fake_shards import FakeShards
from topics.errors import InvalidRequest, NotReady, TopicsError
from topics.formats.wire.calls import TOPIC_LIST, TopicListParams
from topics.front.answers import Answer
from topics.front.routes.context import AskedAll
from topics.front.routes.paging import NAMES, SEQS, answer


def packed(document: bytes) -> str:
    return base64.urlsafe_b64encode(document).decode()


@pytest.mark.parametrize("after", ["a", "jobs:x-1._", "a" * 255])
def test_a_cursor_of_names_holds_a_name(after: str) -> None:
    cursor = NAMES.encode(after)
    assert "=" not in cursor
    assert NAMES.decode("cursor", cursor) == after
    assert NAMES.decode("cursor", cursor + "=") == after


@pytest.mark.parametrize("after", [0, 1, 2**63 - 1])
def test_a_cursor_of_seqs_holds_a_seq(after: int) -> None:
    assert SEQS.decode("cursor", SEQS.encode(after)) == after


@pytest.mark.parametrize(
    "value",
    [
        *("", "!", "\xe9", packed(b"{}"), packed(b'{"after":1.5}'), packed(b'{"after":-1}')),
        *(packed(b'{"after":9223372036854775808}'), packed(b'{"after":1,"before":2}')),
        NAMES.encode("1"),
    ],
)
def test_anything_else_is_no_cursor_of_seqs(value: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SEQS.decode("cursor", value)
    assert raised.value.detail == {"parameter": "cursor"}


@pytest.mark.parametrize(("count", "more"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_page_has_a_cursor_when_one_more_item_was_found(count: int, more: bool) -> None:
    items = [(f"n{number}", b'{"n":%d}' % number) for number in range(count)]
    page = json.loads(bytes(answer("things", items, 2, at=0).body))
    assert page["things"] == [{"n": number} for number in range(min(count, 2))]
    assert page["performance"]["server_total_ms"] > 0
    assert ("next_cursor" in page) == more
    if more:
        assert NAMES.decode("cursor", page["next_cursor"]) == "n1"


def ask_all(shards: FakeShards) -> tuple[AskedAll[Any], list[Answer | TopicsError]]:
    """The answer after all shards were asked for their topics."""
    found: list[Answer | TopicsError] = []
    params = TopicListParams("", None, 9, False, None)

    def names(replies: list[Any]) -> Answer:
        return Answer(200, b",".join(item for reply in replies for _, item in reply.result.items))

    return AskedAll(shards, TOPIC_LIST, params, found.append, names), found


def test_all_shards_are_asked_and_each_reply_is_given_back() -> None:
    shards = FakeShards(count=3, topics={name: [] for name in "abcdefgh"})
    _, (page,) = ask_all(shards)
    assert isinstance(page, Answer)
    assert sorted(row["topic"] for row in json.loads(b"[%b]" % bytes(page.body))) == [*"abcdefgh"]
    assert (len(shards.calls), shards.replies_out) == (3, 0)


def test_the_first_failure_fails_all(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = FakeShards(count=3, topics={name: [] for name in "abcdefgh"})
    told = shards._answer

    def fail(call: Any, params: Any, raw: bytes, shard: int) -> Any:
        if shard == 1:
            raise NotReady("shard 1 is down")
        return told(call, params, raw, shard)

    monkeypatch.setattr(shards, "_answer", fail)
    _, (failure,) = ask_all(shards)
    assert isinstance(failure, NotReady)
    assert (len(shards.calls), shards.replies_out) == (2, 0)


def test_an_answer_that_nobody_wants_is_not_made() -> None:
    shards = FakeShards(count=3, silent={2})
    asked, found = ask_all(shards)
    assert shards.replies_out == 2
    asked.abandon()
    assert (found, shards.replies_out) == ([], 0)
    asked.abandon()
