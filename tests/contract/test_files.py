"""File names and merged segments of a server under load."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.contract.retained import page_of, seqs
from tests.support.api import Api, ok, refused
from tests.support.metrics import scrape
from tests.support.queues import until
from tests.support.routers import put
from tests.support.server import Server

NAME = "Zebra"  # no file of the server contains it in its name
TOPICS = (f"{NAME}", f"{NAME}..", f"{NAME}:C:", f"{NAME}.wal", "A" * 250 + NAME)
SLASHES = (f"../{NAME}", f"/tmp/{NAME}", f"{NAME}/../x")
HOSTILE = (*SLASHES, "..", f"{NAME}\0", f"..\\{NAME}", f"~{NAME}")


def test_names_from_clients_never_become_file_names(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with Server(data_dir, shards=2, wal_file_bytes=1 << 16) as server, Api(server.address) as api:
        for topic in TOPICS:
            ok(api.put(topic, {"durability": "fsync"}), 201)
            for _ in range(4):  # full log files are sealed, so that segments exist, too
                ok(api.append(topic, "x" * 30_000))
            ok(api.append(topic, *["x" * 900_000] * 5))  # a streamed append, which has its own file
        ok(put(api, f"{NAME}>r", TOPICS[0], TOPICS[1]), 201)
        for hostile in HOSTILE:
            path = f"/v0/topics/{quote(hostile, safe='')}"
            refused(api.call("PUT", path, {}), *refusal(hostile))
            path = f"/v0/routers/{quote(hostile, safe='')}"
            ends = {"source": TOPICS[0], "dest": TOPICS[1]}
            refused(api.call("PUT", path, ends), *refusal(hostile))
            refused(put(api, "r", hostile, TOPICS[1]), 400, "invalid_request")
            refused(api.put(TOPICS[0], {"dead_letter": hostile}), 400, "invalid_request")
    names = [found.name for found in tmp_path.rglob("*")]
    assert len(names) > 10
    assert [name for name in names if NAME.lower() in name.lower()] == []
    assert [found.name for found in tmp_path.iterdir()] == ["data"]


def refusal(name: str) -> tuple[int, str]:
    """Return the expected refusal. An encoded slash also separates path segments."""
    return (404, "not_found") if name in SLASHES else (400, "invalid_request")


BOUND_S = 60.0
FILES = 20
FILE_BYTES = 64 << 10
MERGED = "topics_segments_merged_total"


@pytest.mark.slow
def test_files_are_merged_and_a_kill_loses_no_record(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=1, wal_file_bytes=FILE_BYTES) as server:
        with Api(server.address) as api:
            for number in range(FILES):
                answer = api.append("fast", *["x" * 1000] * 70, config={"cap_records": 5})
                ok(answer, answer.status)
                answer = api.append("slow", number, config={"durability": "fsync"})
                ok(answer, answer.status)
            until(lambda: scrape(api), lambda page: page.value(MERGED) >= 8, BOUND_S)
            assert seqs(page_of(api, "slow", 0)) == [*range(1, FILES + 1)]
            # Old files are deleted after two checkpoints, which are written at most every 5 s.
            files = tmp_path / "data" / "segment" / "00"
            until(lambda: len([*files.glob("*.seg")]), lambda count: count < 12, BOUND_S)
        with server.again("kill") as api:
            assert seqs(page_of(api, "slow", 0)) == [*range(1, FILES + 1)]
            assert seqs(page_of(api, "fast", 0)) == [*range(70 * FILES - 4, 70 * FILES + 1)]
