"""The aggregates of §8.3 on a server of two shards: they follow what clients do, a shard that is
killed, and a restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok
from tests.support.queues import HOUR_MS, SHORT_MS, Queue, names_on, until
from tests.support.server import Server

pytestmark = pytest.mark.slow

JSON = {"Accept": "application/json"}


class Gauges:
    """What the page says."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def seen(self) -> dict[str, Any]:
        page = ok(self._api.call("GET", "/v0/metrics", headers=JSON))
        return {name.removeprefix("topics_"): value for name, value in page.items()}

    def become(self, **wanted: Any) -> dict[str, Any]:
        """The page, once it says this."""
        return until(self.seen, lambda page: {name: page[name] for name in wanted} == wanted)


def classes(page: dict[str, Any]) -> dict[str, int]:
    return {row["class"]: row["value"] for row in page["topics_by_class"] if row["value"]}


def syncs_are_timed(page: dict[str, Any]) -> bool:
    return bool(page["wal_fsync_latency_us"]["count"] == page["wal_fsyncs_total"] > 0)


def test_the_gauges_follow_clients_a_killed_shard_and_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server, Api(server.address) as api:
        gauges = Gauges(api)
        gauges.become(topics=0, wal_read_only=0)
        until(gauges.seen, lambda page: page["disk_free_bytes"] > 0)

        names = [*names_on("a"), *names_on("q")]
        one, other, jobs, more = names
        ok(api.put(one, {"durability": "fsync", "cap_records": 3}), 201)
        ok(api.put(other, {"durability": "memory"}), 201)
        for name, durability in ((jobs, "fsync"), (more, "ephemeral")):
            ok(api.put(name, {"type": "queue", "durability": durability}), 201)
        ok(api.append(one, 1, 2, 3, 4, 5, idempotency_key="k"))
        ok(api.append(other, *range(10)))
        for name in (jobs, more):
            records = [{"data": 1}, {"data": 2}, {"data": 3, "delay_ms": 3_600_000}]
            ok(api.append(name, records=records))
            ok(api.call("POST", f"/v0/topics/{name}/claim", {"node": "w", "lease_ms": HOUR_MS}))
        page = gauges.become(
            topics=4,
            queue_topics=2,
            records_live=3 + 10 + 6,
            routers=0,
            queue_leases_in_flight=2,
            queue_delayed=2,
            idempotency_keys=1,
        )
        assert classes(page) == {"fsync": 2, "memory": 1, "ephemeral": 1}
        gauges.become(bytes_live=sum(api.state(name)["bytes"] for name in names))
        until(gauges.seen, syncs_are_timed)
        for name in (jobs, more):
            Queue(api, name).extend([1], lease_ms=SHORT_MS)
        gauges.become(queue_leases_in_flight=0)

        ok(api.call("PUT", "/v0/routers/r", {"source": other, "dest": f"{other}-dest"}), 201)
        ok(api.append(other, 11))
        forwarded = [{"router": "r", "value": 1}]
        gauges.become(topics=5, routers=1, records_live=21, router_forwarded_total=forwarded)

        server.replace("shard 1")
        assert all(row["value"] == 3 for row in gauges.seen()["shard_state"])
        lost = sum(api.state(name)["count"] == 0 for name in (jobs, more))
        gauges.become(topics=5, records_live=21 - 3 * lost)
        until(gauges.seen, syncs_are_timed)

        ok(api.delete(one))
        ok(api.call("POST", f"/v0/topics/{other}/delete", {"before_seq": 6}))
        before = gauges.become(topics=4, records_live=21 - 3 * lost - 3 - 5)
        server.stop()
    with Server(tmp_path / "data") as server, Api(server.address) as api:
        page = until(Gauges(api).seen, lambda page: page["topics"] == 4)
        left = sum(api.state(name)["count"] for name in api_names(api))
        page = Gauges(api).become(topics=4, routers=1, records_live=left)
        assert left <= before["records_live"]
        assert page["checkpoint_bytes"] > 0


def api_names(api: Api) -> list[str]:
    return [item["topic"] for item in ok(api.listing())["topics"]]
