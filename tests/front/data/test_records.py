"""The routes of records."""

from __future__ import annotations

from tests.support.front import KEYS, RECORD, bearer, running
from topics.formats.wire.calls import AppendParams


async def test_parameters_reach_the_shard() -> None:
    async with running(keys=KEYS) as run:
        client = await run.connect()
        headers = {
            "authorization": bearer("writer"),
            "idempotency_key": "klé".encode().decode("latin-1"),
        }
        assert (
            await client.request(
                "POST", "/v0/topics/t.x?return_seqs=false&later=1", RECORD, **headers
            )
        ).status == 201
        method, params, body = run.shards.calls[-1]
        assert (method, body) == ("append", RECORD)
        assert params.at > 0
        assert params == AppendParams("t.x", "klé", False, ["t."], params.at, may_configure=False)
