"""A directory of version 0.1, whose copies lie in the logs of other shards, kept by hard links, is
opened and converted.

``data/linked-0.1.tar.xz``: two shards that were killed with five routers of one source, and
``want.json``, the records that their topics showed; of long data the length alone.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.copies import kept, passed
from tests.support.queues import until
from tests.support.server import Server
from topics.storage.verify import verify_directory

pytestmark = pytest.mark.slow

OLD = Path(__file__).parent / "data" / "linked-0.1.tar.xz"
ROUTERS = "htsfb"


def shown(api: Api, topic: str) -> list[Any]:
    records = kept(api, topic)
    for record in records:
        if isinstance(record["data"], str):
            record["data"] = len(record["data"])
    return records


def test_copies_of_version_0_1_are_read_and_moved_into_segments(tmp_path: Path) -> None:
    with tarfile.open(OLD) as old:
        old.extraction_filter = lambda member, _: member  # asked for by newer Pythons
        old.extractall(tmp_path)
    want = json.loads((tmp_path / "want.json").read_text())
    source, *dests = want
    data_dir = tmp_path / "data"
    assert {*verify_directory(data_dir, 2)} <= {*data_dir.rglob("*")}, "paths, and no finding"
    with Server(data_dir, wal_file_bytes=1 << 20) as server:
        for _ in range(2):
            with Api(server.address) as api:
                assert {name: shown(api, name) for name in want} == want
            server.kill()
            server.start()
        with Api(server.address) as api:
            ok(api.append(source, records=[{"data": "new", "tag": "keep"}]))
            passed(api, *ROUTERS)
            for dest in dests:
                last = shown(api, dest)[-1]
                assert last["$seq"] > want[dest][-1]["$seq"]
            until(lambda: [*data_dir.glob("linked/*/*")], lambda links: not links, 60)
            assert {name: shown(api, name)[: len(want[name])] for name in want} == want
        server.stop()
    with Server(data_dir, wal_file_bytes=1 << 20) as server, Api(server.address) as api:
        assert {name: shown(api, name)[: len(want[name])] for name in want} == want
