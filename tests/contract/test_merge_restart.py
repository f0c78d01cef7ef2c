"""Segments that are merged under a running server, which is killed then: every record is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.retained import page_of, seqs
from tests.support.api import Api, ok
from tests.support.metrics import scrape
from tests.support.queues import until
from tests.support.server import Server

pytestmark = pytest.mark.slow

BOUND_S = 60.0
FILES = 20
FILE_BYTES = 64 << 10
MERGED = "topics_segments_merged_total"


def test_files_become_few_and_a_kill_takes_nothing(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1, wal_file_bytes=FILE_BYTES) as server:
        with Api(server.address) as api:
            for number in range(FILES):
                answer = api.append("fast", *["x" * 1000] * 70, config={"cap_records": 5})
                ok(answer, answer.status)
                answer = api.append("slow", number, config={"durability": "fsync"})
                ok(answer, answer.status)
            until(lambda: scrape(api), lambda page: page.value(MERGED) >= 8, BOUND_S)
            assert seqs(page_of(api, "slow", 0)) == [*range(1, FILES + 1)]
            # Old files go two checkpoints later, of which none is written more than each 5 s.
            files = tmp_path / "data" / "segment" / "00"
            until(lambda: len([*files.glob("*.seg")]), lambda count: count < 12, BOUND_S)
        server.kill()
        server.start()
        with Api(server.address) as api:
            assert seqs(page_of(api, "slow", 0)) == [*range(1, FILES + 1)]
            assert seqs(page_of(api, "fast", 0)) == [*range(70 * FILES - 4, 70 * FILES + 1)]
