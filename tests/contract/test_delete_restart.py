"""Deletes outlive a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.deleting import ODD_TAGS, TAGS
from tests.contract.retained import erased, everything
from tests.support.api import Api, ok
from tests.support.server import Server

SMALL_LOG = 64 << 10


def _scenes(api: Api, durability: str) -> list[str]:
    """Topics with deletes of every kind, some of them long sealed."""

    def scene(name: str, tags: list[str | None], size: int = 0) -> str:
        full = f"{durability}.{name}"
        answer = api.put(full, {"durability": durability})
        ok(answer, answer.status)
        for number, tag in enumerate(tags, 1):
            record = {"data": [number, "x" * size]} | ({} if tag is None else {"tag": tag})
            ok(api.append(full, records=[record], idempotency_key=f"k{number}"))
        return full

    names = [scene(name, TAGS) for name in ("seq", "eq", "glob", "both", "all", "later", "twice")]
    erased(api, names[0], before_seq=5)
    erased(api, names[1], match="a")
    erased(api, names[2], match=["tag", "Glob", "a*"])
    erased(api, names[3], match="a", before_seq=6)
    erased(api, names[4], before_seq=99)
    erased(api, names[5], match=["tag", "Glob", "*"])
    ok(api.append(names[5], records=[{"data": "later", "tag": "a"}]))
    erased(api, names[6], match="b")
    erased(api, names[6], match="c")
    large = scene("sealed", [f"{number % 4}:{number}" for number in range(60)], 8000)
    erased(api, large, match=["tag", "Glob", "1:*"])
    erased(api, large, match="2:2")
    front = scene("front", [f"{number % 4}:{number}" for number in range(40)], 8000)
    erased(api, front, before_seq=20)
    odd = scene("odd", [tag for tag in ODD_TAGS if tag])
    for tag in ODD_TAGS[::2]:
        erased(api, odd, match=tag)
    return [*names, large, front, odd]


@pytest.fixture(scope="module", params=["stop", "kill"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, dict[str, Any]]]:
    """What every scene looked like before a restart, and the restarted server. Its log files are
    small, so much is sealed.
    """
    path: Path = tmp_path_factory.mktemp("deletes") / "data"
    with Server(path, shards=1, wal_file_bytes=SMALL_LOG) as server:
        with Api(server.address) as api:
            before = {
                name: everything(api, name)
                for name in [*_scenes(api, "fsync"), *_scenes(api, "disk")]
            }
        server.stop() if request.param == "stop" else server.kill()
        server.start()
        yield server, before


@pytest.mark.slow
def test_deletes_outlive_a_restart_and_go_on_after_it(
    restarted: tuple[Server, dict[str, Any]],
) -> None:
    server, before = restarted
    with Api(server.address) as api:
        assert {name: everything(api, name) for name in before} == before
        for durability in ("fsync", "disk"):
            for body in ({"match": "a"}, {"match": ["tag", "Glob", "a*"]}):
                assert erased(api, f"{durability}.glob", **body) == 0
            assert erased(api, f"{durability}.eq", match="b") == 2
            assert erased(api, f"{durability}.later", match="a") == 1
            assert erased(api, f"{durability}.sealed", match=["tag", "Glob", "3:*"]) == 15
            assert erased(api, f"{durability}.front", before_seq=30) == 10
            assert ok(api.append(f"{durability}.all", "again", idempotency_key="k3"))["seqs"] == [3]
            assert ok(api.append(f"{durability}.all", "new"))["seqs"] == [11]
        after = {name: everything(api, name) for name in before}
    server.kill()
    server.start()
    with Api(server.address) as api:
        assert {name: everything(api, name) for name in after} == after
