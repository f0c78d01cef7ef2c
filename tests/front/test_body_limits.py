"""Limits of request bodies that are decoded in one iteration."""

from __future__ import annotations

import contextlib
import gzip

import pytest
import trio

from tests.support.fake_shards import FakeShards
from tests.support.front import running
from tests.support.raw_client import request
from topics.config import Settings
from topics.front.body_limits import SHORT_BODY_BYTES, short_body_max

SHORT = ["POST /v0/topics/a/diff", "POST /v0/topics/a/delete", "PUT /v0/topics/a", "POST /v0/watch"]


@pytest.mark.parametrize("line", SHORT)
async def test_bodies_that_are_decoded_in_one_step_have_their_own_bound(line: str) -> None:
    method, path = line.split()
    body = b'{"node":[' + b'"",' * 100_000 + b'""]}'
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    async with running(shards=FakeShards(topics={"a": []})) as run:
        for wire in (
            request(method, path, body),
            request(method, path, gzip.compress(body), content_encoding="gzip"),
            request(method, path, content_type="application/json", transfer_encoding="chunked")
            + chunks,
        ):
            client = await run.connect()
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send(wire)
            answer = await client.receive()
            assert (answer.status, answer.code) == (413, "payload_too_large")
            assert answer.json()["error"]["detail"] == {"max": SHORT_BODY_BYTES}
        assert not run.shards.calls
        client = await run.connect()
        assert (
            await client.request("POST", "/v0/topics/a", b'{"records":[%b]}' % body)
        ).status == 200


def test_a_body_may_list_as_many_jobs_as_can_be_claimed() -> None:
    settings = Settings(max_claim=100_000)
    lease_ids = '"lease_ffffffffffffffff",' * settings.max_claim
    seqs = "18446744073709551615," * settings.max_claim
    assert len(lease_ids) + len(seqs) < short_body_max(settings) <= 64 * settings.max_claim
