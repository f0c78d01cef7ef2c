"""A disk that is temporarily full while a body of many megabytes is written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.mounts import Lossy, needs_lossy
from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = pytest.mark.slow

MIB = 1 << 20


def wait_until(condition: Callable[[], Any], problem: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.005)


def is_refused(api: Api, size: int) -> bool:
    return bool(api.append("other", "x" * size).status == 503)


def fill_with_deletes(api: Api) -> None:
    """Fill the log reserve, which deletes use on a full disk, until a delete is refused."""
    bound = 2
    for tag in range(16):  # About 300 runs of 16 bytes each
        body = {"match": ["tag", "Eq", f"t{tag}"]}
        api.call("POST", "/v0/topics/other/delete", body)
    while api.call("POST", "/v0/topics/other/delete", {"before_seq": bound}).status != 503:
        bound += 1
        assert bound < 2000, "the log does not become full"


@needs_lossy
def test_a_full_disk_during_a_streamed_append_loses_nothing_and_reuses_no_seq(
    tmp_path: Path,
) -> None:
    """A read advances the floor of the topic at the same time. The FLOOR frame finds no space."""
    with (
        Lossy(tmp_path / "lossy") as lossy,
        Server(
            lossy.path / "data", shards=1, wal_file_bytes=64 << 10, wal_sync_ms=60_000
        ) as server,
    ):
        answers: list[Any] = []

        def append_streamed() -> None:
            with Api(server.address) as streaming:
                answers.append(streaming.append("t", *["y" * 65_000] * 880))

        with Api(server.address) as api:
            ok(api.put("t", {"ttl_ms": 4000}), 201)
            ok(api.append("t", "old"))
            fill = [
                {"data": seq, "tag": f"t{seq // 2 % 16}"} if seq % 2 else {"data": seq}
                for seq in range(10_000)
            ]
            ok(api.append("other", records=fill, config={"durability": "memory"}), 201)
            lossy.ctl("fsyncms", ms=60)
            writer = threading.Thread(target=append_streamed)
            writer.start()
            blobs = lossy.path / "data" / "blob" / "00"
            wait_until(
                lambda: any(path.stat().st_size > 40 * MIB for path in blobs.glob("*.new")),
                "the streamed append has not reserved its space",
            )
            lossy.ctl("limit", bytes=lossy.ctl("stat")["used"])
            for size in (4000, 200, 0):
                wait_until(partial(is_refused, api, size), "the disk does not become full")
            fill_with_deletes(api)
            wait_until(lambda: api.state("t")["count"] == 0, "the old record does not expire")
            assert not answers, "the streamed append has already ended"
            lossy.ctl("limit", bytes=0)
            writer.join()
            ok(api.put("t", {"ttl_ms": 0}))
            long, small = ok(answers[0])["seqs"], ok(api.append("t", "small"))["seqs"]
            assert (long, small) == ([*range(2, 882)], [882])
            lossy.ctl("fsyncms", ms=0)
        with server.again("kill") as api:
            assert [record["$seq"] for record in api.read("t", max_batch_bytes=8 * MIB)][-1] == 882
            assert ok(api.append("t", "again"))["first_seq"] == 883
