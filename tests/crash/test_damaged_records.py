"""Damage to the files of a running server."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.crash.reading import data_of
from tests.support.api import Api, ok
from tests.support.server import Server
from tests.support.sse import watch
from topics.formats.disk.segment import CHUNK_BYTES

pytestmark = pytest.mark.slow


def test_damage_to_a_running_server_is_reported_to_readers_and_affects_no_other_topic(
    tmp_path: Path,
) -> None:
    with (
        Server(tmp_path / "data", shards=1, wal_file_bytes=256 << 10) as server,
        Api(server.address) as api,
    ):
        ok(api.put("damaged", {"ttl_ms": 3_600_000, "cap_records": 2_000}), 201)
        for number in range(400):
            for topic in ("damaged", "intact"):
                answer = api.append(
                    topic, records=[{"data": [number, "x" * 1000], "tag": "t", "node": "n"}]
                )
                ok(answer, answer.status)
        deadline = time.monotonic() + 20
        while len(list((tmp_path / "data" / "checkpoint" / "00").glob("*.ckpt"))) < 2:
            assert time.monotonic() < deadline, "no checkpoint was written"
            time.sleep(0.05)
        segment = min((tmp_path / "data" / "segment" / "00").glob("*.seg"))
        with segment.open("r+b") as file:
            file.seek(4096 + CHUNK_BYTES + 100)  # In the second chunk of the first extent
            file.write(b"\0\0\0\0")
        # The segment may begin with either topic.
        damaged, intact = sorted(("damaged", "intact"), key=lambda topic: len(data_of(api, topic)))
        page = ok(api.diff(damaged, from_seq=0))
        first = page["next_from_seq"] + 1
        assert [record["$seq"] for record in page["records"]] == [*range(1, first)]
        assert (first > 30, page["tombstone"]) == (True, None)
        page = ok(api.diff(damaged, from_seq=first - 1, wait_ms=500, limit=1000))
        gap = page["tombstone"]
        assert (gap["gap_from"], gap["reason"], gap["earliest_seq"], gap["head_seq"]) == (
            first,
            "damaged",
            1,
            400,
        )
        assert gap["missed_estimate"] == gap["gap_to"] - first + 1 < 70
        assert [record["$seq"] for record in page["records"]] == [*range(gap["gap_to"] + 1, 401)]
        assert str(tmp_path) not in str(page), "the response contains a path of the server"
        assert ok(api.diff(damaged, from_seq=0, node="n"))["tombstone"] is None, (
            "a gap is reported although the filter excludes all records"
        )
        assert len(data_of(api, intact)) == 400
        with watch(api, [damaged]) as stream:
            contents = stream.read_until_caught_up([damaged])
        assert [
            (each["gap_from"], each["gap_to"], each["reason"]) for each in contents.tombstones
        ] == [(first, gap["gap_to"], "damaged")]
        assert [record["$seq"] for record in contents.records] == [
            *range(1, first),
            *range(gap["gap_to"] + 1, 401),
        ]
        for number in range(20):
            ok(api.append(damaged, number))
            ok(api.append(intact, number))
        ok(api.call("GET", "/v0/topics"))
        assert api.state(damaged)["head_seq"] == 420
        assert server.logged.count(str(segment)) == 1, "the damage must be logged once"
        assert "Traceback" not in server.logged
