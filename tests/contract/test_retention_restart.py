"""Floors, tombstones and full topics outlive a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.retained import erased, everything, floors, gap, page_of, put, seqs
from tests.support.api import Api, ok, refused
from tests.support.server import Server

pytestmark = pytest.mark.slow


def _scenes(api: Api, durability: str) -> dict[str, str]:
    """Topics with floors of every kind; what they are about, by name."""
    scenes = {}

    def scene(name: str, about: str, count: int = 10, **config: Any) -> str:
        full = f"{durability}.{name}"
        put(api, full, durability=durability, **config)
        for number in range(1, count + 1):
            ok(
                api.append(
                    full,
                    records=[{"data": number, "tag": f"t{number}"}],
                    idempotency_key=f"k{number}",
                )
            )
        scenes[full] = about
        return full

    aged = scene("ttl", "expired records, the TTL relaxed")
    mixed = scene("mixed", "cap first, then TTL")
    unseen = scene("unseen", "expired records that nobody has looked for, the TTL relaxed")
    scene("cap", "a cap that holds", cap_records=4)
    put(api, scene("relaxed", "a cap that was relaxed", cap_records=4), cap_records=0)
    put(api, scene("tightened", "a cap that came later"), cap_records=4)
    put(api, scene("both-ways", "a cap that came and went"), cap_records=4)
    put(api, f"{durability}.both-ways", cap_records=9)
    erased(api, scene("deleted", "a cap, then a delete", cap_records=4), before_seq=9)
    erased(api, scene("emptied", "a cap, then everything deleted", cap_records=4), before_seq=99)
    holes = scene("holes", "deletes between, then a cap")
    for number in (2, 5, 6):
        erased(api, holes, match=f"t{number}")
    put(api, holes, cap_records=4)
    scene("bytes", "a cap of bytes", cap_bytes=500)
    scene("full", "a topic that rejects", cap_records=10, discard="reject")
    again = scene("again", "made again", cap_records=3)
    ok(api.delete(again))
    scene("again", "made again", 5, cap_records=3)
    put(api, mixed, cap_records=7)
    time.sleep(0.5)
    for name in (aged, mixed, unseen):
        put(api, name, ttl_ms=300)
        if name != unseen:
            assert floors(api, name)["count"] == 0
        put(api, name, ttl_ms=0)
        ok(api.append(name, "new"))
    return scenes


@pytest.fixture(scope="module", params=["stop", "kill"])
def restarted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Api, dict[str, Any]]]:
    """What every scene looked like before a restart, and a client of the restarted server."""
    path: Path = tmp_path_factory.mktemp("retention") / "data"
    with Server(path, shards=1) as server:
        with Api(server.address) as api:
            scenes = [*_scenes(api, "fsync"), *_scenes(api, "disk")]
            before = {name: everything(api, name) for name in scenes}
        server.stop() if request.param == "stop" else server.kill()
        server.start()
        with Api(server.address) as api:
            yield api, before


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_floors_and_tombstones_outlive_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, before = restarted
    mine = {name: seen for name, seen in before.items() if name.startswith(f"{durability}.")}
    assert {name: everything(api, name) for name in mine} == mine


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_full_topic_is_full_after_a_restart_and_knows_its_keys(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, _before = restarted
    topic = f"{durability}.full"
    refused(api.append(topic, "more"), 422, "topic_full")
    assert ok(api.append(topic, "again", idempotency_key="k3"))["seqs"] == [3]
    again = ok(api.append(f"{durability}.emptied", "again", idempotency_key="k3"))
    assert (again["deduped"], again["seqs"]) == (True, [3])


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_a_cap_goes_on_after_a_restart(
    restarted: tuple[Api, dict[str, Any]], durability: str
) -> None:
    api, _before = restarted
    topic = f"{durability}.holes"
    ok(api.append(topic, "eleventh"))
    page = page_of(api, topic, 0)
    assert seqs(page) == [8, 9, 10, 11]
    assert gap(page, "cap") == (1, 7)
