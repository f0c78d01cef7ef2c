"""Pages of lists: clamped sizes and opaque cursors of different types."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.fake_shards import FakeShards
from tests.support.front import running
from tests.support.raw_client import request
from topics.errors import InvalidRequest, NotReady
from topics.front.admin.paging import NAMES, SEQS, answer


def packed(document: bytes) -> str:
    return base64.urlsafe_b64encode(document).decode()


@pytest.mark.parametrize("after", ["a", "jobs:x-1._", "a" * 255])
def test_a_cursor_of_names_encodes_a_name(after: str) -> None:
    cursor = NAMES.encode(after)
    assert "=" not in cursor
    assert NAMES.decode("cursor", cursor) == after
    assert NAMES.decode("cursor", cursor + "=") == after


@pytest.mark.parametrize("after", [0, 1, 2**63 - 1])
def test_a_cursor_of_seqs_encodes_a_seq(after: int) -> None:
    assert SEQS.decode("cursor", SEQS.encode(after)) == after


@pytest.mark.parametrize(
    "value",
    [
        *("", "!", "\xe9", packed(b"{}"), packed(b'{"after":1.5}'), packed(b'{"after":-1}')),
        *(packed(b'{"after":9223372036854775808}'), packed(b'{"after":1,"before":2}')),
        NAMES.encode("1"),
    ],
)
def test_any_other_value_is_refused_as_a_cursor_of_seqs(value: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        SEQS.decode("cursor", value)
    assert raised.value.detail == {"parameter": "cursor"}


@pytest.mark.parametrize(("count", "more"), [(0, False), (1, False), (2, False), (3, True)])
def test_a_page_has_a_cursor_if_there_is_another_item(count: int, more: bool) -> None:
    items = [(f"n{number}", b'{"n":%d}' % number) for number in range(count)]
    page = json.loads(bytes(answer("things", items, 2, at=0).body))
    assert page["things"] == [{"n": number} for number in range(min(count, 2))]
    assert page["performance"]["server_total_ms"] > 0
    assert ("next_cursor" in page) == more
    if more:
        assert NAMES.decode("cursor", page["next_cursor"]) == "n1"


async def test_all_shards_are_requested_and_each_reply_is_released() -> None:
    shards = FakeShards(count=3, topics={name: [] for name in "abcdefgh"})
    async with running(shards=shards) as run:
        client = await run.connect()
        page = (await client.request("GET", "/v0/topics?page_size=5")).json()
        assert [row["topic"] for row in page["topics"]] == [*"abcde"]
        page = (await client.request("GET", f"/v0/topics?cursor={page['next_cursor']}")).json()
        assert [row["topic"] for row in page["topics"]] == [*"fgh"]
        assert (len(shards.calls), shards.replies_out) == (6, 0)


async def test_a_failure_of_one_shard_fails_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = FakeShards(count=3, topics={name: [] for name in "abcdefgh"})
    original = shards._answer

    def fail(call: Any, params: Any, raw: bytes, shard: int) -> Any:
        if shard == 1:
            raise NotReady("shard 1 is down")
        return original(call, params, raw, shard)

    monkeypatch.setattr(shards, "_answer", fail)
    async with running(shards=shards) as run:
        client = await run.connect()
        answer = await client.request("GET", "/v0/topics")
        assert (answer.status, answer.code) == (503, "not_ready")
        assert shards.replies_out == 0


@pytest.mark.slow
async def test_a_stop_of_the_front_does_not_wait_for_a_page() -> None:
    """`running` checks that all replies are released."""
    shards = FakeShards(count=3, silent={2})
    async with running(shards=shards) as run:
        client = await run.connect()
        await client.send(request("GET", "/v0/topics"))
        await run.until(lambda: len(shards.calls) == 3)
