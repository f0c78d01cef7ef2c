"""GET /v0/routers/:router (§6): the config and the counters of a router."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.api import Api, data, ok, refused
from tests.support.queues import names_on, until
from tests.support.routers import DEFAULTS, OTHERS, config_of, delete, get, names, pages, put
from tests.support.server import Server


@pytest.fixture(params=["same shard", "another shard"])
def ends(request: pytest.FixtureRequest, topic: str) -> tuple[str, str]:
    """Names of a source and a dest that are not there yet."""
    same, other = names_on(topic)
    return topic, same if request.param == "same shard" else other


def test_a_router_is_shown_with_its_config_and_counters(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends), 201)
    assert ok(get(api, router)) | {"performance": {}} == {
        "router": router,
        "source": ends[0],
        "dest": ends[1],
        **DEFAULTS,
        "forwarded_total": 0,
        "lag_records": 0,
        "lag_ms": 0,
        "performance": {},
    }


def test_every_setting_is_shown(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b", **OTHERS), 201)
    assert config_of(ok(get(api, topic))) == {
        "source": f"{topic}.a",
        "dest": f"{topic}.b",
        **OTHERS,
    }


def test_an_absent_router_is_a_404_that_names_it(api: Api, topic: str) -> None:
    ok(api.put(topic), 201)
    for name in (topic, f"{topic}->b"):
        error = refused(get(api, name), 404, "router_not_found")
        assert error["detail"]["router"] == name


def test_a_deleted_router_is_a_404(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b"), 201)
    ok(delete(api, topic))
    refused(get(api, topic), 404, "router_not_found")


def test_a_get_makes_nothing(api: Api, topic: str) -> None:
    refused(get(api, topic), 404, "router_not_found")
    refused(api.get(topic), 404, "topic_not_found")
    assert names(api, prefix=topic) == []


def test_forwarded_records_are_counted_and_the_lag_goes(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(api.append(ends[0], "before"), 201)
    ok(put(api, router, *ends), 201)
    ok(api.append(ends[0], 1, 2, 3))
    state = until(lambda: ok(get(api, router)), lambda found: found["forwarded_total"] == 3)
    assert (state["lag_records"], state["lag_ms"]) == (0, 0)
    assert data(api.read(ends[1])) == [1, 2, 3]
    ok(api.append(ends[0], 4))
    until(lambda: ok(get(api, router)), lambda found: found["forwarded_total"] == 4)


def test_records_that_are_passed_over_are_not_counted(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(put(api, router, *ends, filter="yes"), 201)
    records = [{"data": tag, "tag": tag} for tag in ("no", "yes", "yes!", "no", "yes", "no")]
    ok(api.append(ends[0], records=records))
    state = until(
        lambda: ok(get(api, router)),
        lambda found: found["forwarded_total"] == 2 and found["lag_records"] == 0,
    )
    assert state["lag_ms"] == 0
    assert data(api.read(ends[1])) == ["yes", "yes"]


def test_the_total_survives_a_change_and_not_a_delete(api: Api, topic: str) -> None:
    ok(put(api, topic, f"{topic}.a", f"{topic}.b"), 201)
    ok(api.append(f"{topic}.a", 1, 2))
    until(lambda: ok(get(api, topic))["forwarded_total"], lambda total: total == 2)
    ok(put(api, topic, f"{topic}.a", f"{topic}.b", preserve_tag=False))
    assert ok(get(api, topic))["forwarded_total"] == 2
    ok(put(api, topic, f"{topic}.a", f"{topic}.c"))
    assert ok(get(api, topic))["forwarded_total"] == 2
    ok(delete(api, topic))
    ok(put(api, topic, f"{topic}.a", f"{topic}.c"), 201)
    assert ok(get(api, topic))["forwarded_total"] == 0


def test_a_full_dest_shows_as_lag(api: Api, ends: tuple[str, str]) -> None:
    router = "->".join(ends)
    ok(api.put(ends[1], {"cap_records": 2, "discard": "reject"}), 201)
    ok(put(api, router, *ends), 201)
    ok(api.append(ends[0], 1, 2, 3, 4, 5))
    state = until(
        lambda: ok(get(api, router)),
        lambda found: found["forwarded_total"] == 2 and found["lag_ms"] > 0,
    )
    assert state["lag_records"] == 3
    later = until(lambda: ok(get(api, router)), lambda found: found["lag_ms"] > state["lag_ms"])
    assert (later["forwarded_total"], later["lag_records"]) == (2, 3)
    ok(api.put(ends[1], {"cap_records": 0}))
    until(lambda: ok(get(api, router))["lag_records"], lambda lag: lag == 0)
    assert ok(get(api, router))["forwarded_total"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_routers_survive_a_restart(tmp_path: Path, end: str) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        with Api(server.address) as api:
            for number in range(20):
                fields = OTHERS if number % 2 else {}
                ok(put(api, f"r{number:02}", f"a{number}", f"b{number}", **fields), 201)
            ok(put(api, "r00", "a0", "c0", filter="t"))
            ok(delete(api, "r01"))
            ok(api.delete("a2"))
            ok(api.append("a3", records=[{"data": 1, "tag": "public:x"}]))
            until(lambda: ok(get(api, "r03"))["forwarded_total"], lambda total: total == 1)
            before = [ok(get(api, name)) | {"performance": {}} for name in names(api)]
        server.stop() if end == "stop" else server.kill()
        server.start()
        with Api(server.address) as api:
            assert names(api) == [f"r{number:02}" for number in range(20) if number not in (1, 2)]
            until(
                lambda: [ok(get(api, name)) | {"performance": {}} for name in names(api)],
                lambda after: after == before,
            )
            assert [item["forwarded_total"] for page in pages(api) for item in page] == [
                item["forwarded_total"] for item in before
            ]
            refused(get(api, "r01"), 404, "router_not_found")
            assert ok(put(api, "r00", "a0", "c0"))["created"] is False
