"""Topics through both lanes: their life, the list, its cursors."""

from __future__ import annotations

import base64

from tests.support.fake_backend import FakeBackend
from tests.support.front import LANES, RECORD, running


@LANES
async def test_a_topic_is_created_written_read_and_deleted(fast: bool) -> None:
    async with running(fast=fast) as run:
        client = await run.connect()
        assert (await client.ask("PUT", "/v0/topics/a", b'{"ttl_ms":5}')).json()["config"] == {
            "ttl_ms": 5
        }
        assert (await client.ask("PUT", "/v0/topics/a")).status == 200
        assert (await client.ask("POST", "/v0/topics/a", RECORD)).json()["head_seq"] == 1
        assert (await client.ask("POST", "/v0/topics/b", RECORD)).status == 201
        assert (await client.ask("POST", "/v0/topics/a/diff", b"{}")).json()["records"] == [
            {"data": 1}
        ]
        assert (await client.ask("POST", "/v0/topics/a/diff")).status == 200
        assert (await client.ask("GET", "/v0/topics/a?touch=false")).json()["touch"] is False
        assert (await client.ask("DELETE", "/v0/topics/a?if_empty=true")).code == "topic_not_empty"
        assert (await client.ask("DELETE", "/v0/topics/a")).json()["deleted"] is True
        assert (await client.ask("DELETE", "/v0/topics/a")).json()["deleted"] is False
        assert (await client.ask("GET", "/v0/topics/a")).json()["error"]["detail"] == {"topic": "a"}


@LANES
async def test_the_list_is_merged_paged_and_filtered(fast: bool) -> None:
    names = [f"t.{n:03}" for n in range(25)] + ["z"]
    backend = FakeBackend(shards=3, topics={name: [] for name in names})
    async with running(fast=fast, backend=backend, keys="all,some:read:t.") as run:
        client = await run.connect()
        seen: list[str] = []
        path = "/v0/topics?page_size=10"
        while True:
            page = (await client.ask("GET", path, authorization="Bearer some")).json()
            seen += [topic["topic"] for topic in page["topics"]]
            assert "server_total_ms" in page["performance"]
            if "next_cursor" not in page:
                break
            assert "=" not in page["next_cursor"]
            path = "/v0/topics?page_size=10&cursor=" + page["next_cursor"]
        assert seen == names[:-1]
        assert (
            len(
                (
                    await client.ask("GET", "/v0/topics?page_size=0", authorization="Bearer all")
                ).json()["topics"]
            )
            == 1
        )
        assert (
            len(
                (
                    await client.ask("GET", "/v0/topics?page_size=9999", authorization="Bearer all")
                ).json()["topics"]
            )
            == 26
        )
        assert (await client.ask("GET", "/v0/topics?prefix=z", authorization="Bearer some")).json()[
            "topics"
        ] == []
        padded = base64.urlsafe_b64encode(b'{"after":"t.023"}').decode()
        rest = (
            await client.ask("GET", f"/v0/topics?cursor={padded}", authorization="Bearer all")
        ).json()["topics"]
        assert [topic["topic"] for topic in rest] == ["t.024", "z"]


@LANES
async def test_the_exactly_last_page_has_no_cursor(fast: bool) -> None:
    async with running(fast=fast, backend=FakeBackend(topics={"a": [], "b": []})) as run:
        client = await run.connect()
        assert "next_cursor" not in (await client.ask("GET", "/v0/topics?page_size=2")).json()
