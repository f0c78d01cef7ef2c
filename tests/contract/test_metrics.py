"""The metrics page (§8.3): names, types, values and required rights, and gauges that reflect the
requests of clients.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.metrics import MEDIA_TYPE, Page, scrape
from tests.support.queues import HOUR_MS, SHORT_MS, Queue, names_on, until, work_path
from tests.support.server import Server
from tests.support.sse import Stream, session
from tests.support.ws import Socket

DIFF = frozenset({("route", "diff")})
FULL, READER = "full-key", "reader-key"
KEYS = f"{FULL},{READER}:read,writer:write,admin:admin+delete,tenant:read:t42:|shared."
NAMES = ("t42:log", "t43:log", "shared.jobs", "plain")

# The list of §8.3.
AGGREGATES = {
    **dict.fromkeys(
        (
            *("topics_topics", "topics_topics_by_class", "topics_routers", "topics_records_live"),
            *("topics_bytes_live", "topics_queue_topics", "topics_queue_leases_in_flight"),
            *("topics_sse_connections", "topics_watch_sessions", "topics_ready"),
            *("topics_recovery_progress", "topics_uptime_ms", "topics_topic_metrics_truncated"),
        ),
        "gauge",
    ),
    **dict.fromkeys(
        (
            *("topics_wal_frames_total", "topics_wal_batches_total", "topics_wal_fsyncs_total"),
            *("topics_wal_bytes_written_total", "topics_wal_rotations_total"),
            *("topics_wal_submit_full_total", "topics_wal_loop_fsyncs_total"),
        ),
        "counter",
    ),
    **dict.fromkeys(
        ("topics_wal_queue_depth", "topics_wal_queue_depth_peak", "topics_wal_read_only"), "gauge"
    ),
    "topics_wal_fsync_latency_us": "histogram",
}
OF_TOPICS = {
    **{f"topics_topic_{field}": "gauge" for field in ("head_seq", "earliest_seq")},
    **{f"topics_topic_{field}": "gauge" for field in ("records_live", "bytes_live")},
    **{f"topics_topic_queue_{field}": "gauge" for field in ("ready", "in_flight")},
}


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Topics on two shards, a queue with a leased and a delayed job, and a router."""
    data = tmp_path_factory.mktemp("metrics") / "data"
    with Server(data, api_keys=KEYS, shards=2) as server:
        with Api(server.address, token=FULL) as api:
            for name in ("t42:log", "t43:log"):
                ok(api.put(name, {"durability": "disk", "cap_records": 2}), 201)
                ok(api.append(name, 1, 2, 3))
            ok(api.put("plain", {"durability": "fsync"}), 201)
            ok(api.put("shared.jobs", {"type": "queue"}), 201)
            jobs = [{"data": 1}, {"data": 2}, {"data": 3, "delay_ms": 3_600_000}]
            ok(api.append("shared.jobs", records=jobs))
            claim = {"node": "w", "max": 1, "lease_ms": 600_000}
            ok(api.call("POST", "/v0/topics/shared.jobs/claim", claim))
            ends = {"source": "plain", "dest": "t43:log"}
            ok(api.call("PUT", "/v0/routers/r", ends), 201)
        yield server


@pytest.fixture
def full(metered: Server) -> Iterator[Api]:
    with Api(metered.address, token=FULL) as api:
        yield api


def settled(api: Api) -> Page:
    """Wait for a page with all topics. The counters on the board are up to one tick old."""
    return until(lambda: scrape(api), lambda page: page.value("topics_topics") == len(NAMES))


def test_every_documented_name_has_its_type_and_a_value(full: Api) -> None:
    page = settled(full)
    expected = AGGREGATES | OF_TOPICS
    assert {name: page.types.get(name) for name in expected} == expected
    shown = {name for name, _ in page.samples}
    assert {name for name, kind in expected.items() if kind != "histogram"} <= shown


def test_additional_names_have_our_prefix_and_a_help_text(full: Api) -> None:
    page = settled(full)
    assert all(name.startswith("topics_") for name in page.types)
    assert all(text.endswith(".") for text in page.helps.values()), page.helps
    for name, kind in page.types.items():
        assert name.endswith("_total") == (kind == "counter")


def test_rows_of_topics_match_their_state(full: Api) -> None:
    page = settled(full)
    assert page.labels("topics_topic_head_seq", "topic") == {*NAMES}
    for name in NAMES:
        state = full.state(name)
        for field, metric in (
            ("head_seq", "head_seq"),
            ("earliest_seq", "earliest_seq"),
            ("count", "records_live"),
            ("bytes", "bytes_live"),
        ):
            assert page.value(f"topics_topic_{metric}", topic=name) == state[field], (name, field)
    assert page.labels("topics_topic_queue_ready", "topic") == {"shared.jobs"}
    for field, count in (("ready", 1), ("in_flight", 1), ("delayed", 1)):
        assert page.value(f"topics_topic_queue_{field}", topic="shared.jobs") == count
    assert page.value("topics_topic_metrics_truncated") == 0
    assert page.value("topics_router_lag_records", router="r") == 0


def test_aggregates_are_the_sums_over_all_topics(full: Api) -> None:
    def has_consistent_sums(page: Page) -> bool:
        rows = page.total("topics_topic_records_live"), page.total("topics_topic_bytes_live")
        return rows == (page.value("topics_records_live"), page.value("topics_bytes_live"))

    page = until(lambda: scrape(full), has_consistent_sums)
    assert page.value("topics_topics") == len(NAMES)
    assert page.total("topics_topics_by_class") == len(NAMES)
    assert page.value("topics_topics_by_class", **{"class": "fsync"}) >= 1
    assert page.value("topics_queue_topics") == 1
    assert page.value("topics_queue_leases_in_flight") == 1
    assert page.value("topics_routers") == 1
    assert page.value("topics_ready") == page.value("topics_recovery_progress") == 1


def test_a_page_includes_every_write_acknowledged_before_its_request(full: Api) -> None:
    for _ in range(20):
        before = scrape(full).value("topics_records_live")
        ok(full.append("plain", "one more"))
        assert scrape(full).value("topics_records_live") == before + 1


def test_the_histogram_of_syncs_is_cumulative_and_complete(full: Api) -> None:
    page = settled(full)
    name = "topics_wal_fsync_latency_us"
    buckets = [
        value
        for (found, labels), value in page.samples.items()
        if found == f"{name}_bucket" and "le" in dict(labels)
    ]
    assert buckets == sorted(buckets)
    assert page.value(f"{name}_bucket", le="500") <= page.value(f"{name}_bucket", le="+Inf")
    assert page.value(f"{name}_bucket", le="+Inf") == page.value(f"{name}_count") > 0
    assert page.value(f"{name}_sum") > 0


def test_a_key_with_prefixes_sees_only_matching_rows(metered: Server) -> None:
    with Api(metered.address, token="tenant") as tenant:
        page = scrape(tenant)
        assert page.labels("topics_topic_head_seq", "topic") == {"t42:log", "shared.jobs"}
        assert page.labels("topics_router_lag_ms", "router") == set()
        assert page.value("topics_topic_metrics_truncated") == 0


def test_json_has_the_same_families(full: Api) -> None:
    page = settled(full)
    answer = full.call("GET", "/v0/metrics", headers={"Accept": "application/json"})
    body = ok(answer)
    assert body.keys() == page.types.keys() | {"performance"}
    assert body["topics_topics"] == len(NAMES)
    assert {"topic": "t42:log", "value": 3} in body["topics_topic_head_seq"]
    latency = body["topics_wal_fsync_latency_us"]
    assert latency["buckets"][-1] == {"le": "+Inf", "count": latency["count"]}


def test_a_head_request_is_answered(full: Api) -> None:
    answer = full.call("HEAD", "/v0/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, MEDIA_TYPE)
    assert answer.body == b""


def test_streams_are_counted_while_they_are_open(metered: Server, full: Api) -> None:
    def kinds() -> dict[str, float]:
        page = scrape(full)
        found = {kind: page.value("topics_streams", kind=kind) for kind in ("watch", "work")}
        return found | {"websocket": page.value("topics_streams", kind="websocket")}

    before = scrape(full)
    assert before.value("topics_sse_connections") == before.value("topics_watch_sessions") == 0
    path = session(full, ["t42:log"])["stream_url"]
    assert scrape(full).value("topics_watch_sessions") == 1
    work = work_path("shared.jobs", node="w")
    with (
        Stream(metered.address, path, token=FULL),
        Stream(metered.address, work, token=FULL),
        Socket(metered.address, token=FULL),
    ):
        assert scrape(full).value("topics_sse_connections") == 3
        until(kinds, lambda found: found == {"watch": 1, "work": 1, "websocket": 1})
    until(kinds, lambda found: not any(found.values()))
    assert scrape(full).value("topics_sse_connections") == 0


def test_requests_are_counted_by_route_and_status(metered: Server, full: Api) -> None:
    def counts(page: Page) -> dict[tuple[str, str], float]:
        found = [
            (dict(labels), value)
            for (name, labels), value in page.samples.items()
            if name == "topics_http_requests_total"
        ]
        return {(labels["route"], labels["status"]): value for labels, value in found}

    before = settled(full)
    expected = {
        ("diff", "200"): 3,
        ("topic.get", "404"): 1,
        ("other", "404"): 1,
        ("append", "401"): 1,
    }
    for _ in range(3):
        ok(full.diff("t42:log"))
    refused(full.get("absent"), 404, "topic_not_found")
    refused(full.call("GET", "/v0/absent"), 404, "not_found")
    with Api(metered.address) as anonymous:
        refused(anonymous.append("t42:log", 1), 401, "unauthorized")

    def more(page: Page) -> dict[tuple[str, str], float]:
        known = counts(before)
        return {key: value - known.get(key, 0) for key, value in counts(page).items()}

    after = until(
        lambda: scrape(full),
        lambda page: {key: more(page).get(key) for key in expected} == expected,
    )
    for name in ("received_bytes_total", "sent_bytes_total"):
        grown = after.value(f"topics_http_{name}", route="diff")
        assert grown - before.samples.get((f"topics_http_{name}", DIFF), 0) > 3 * 50
    latency = "topics_http_request_duration_us"
    assert after.value(f"{latency}_count", route="diff") >= 3
    assert after.value(f"{latency}_sum", route="diff") > 0


def test_promtool_reports_only_the_documented_units(full: Api) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool, of the Debian package prometheus, is not installed")
    settled(full)
    text = full.call("GET", "/v0/metrics").body
    found = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, timeout=30, check=False
    )
    output = (found.stdout + found.stderr).decode().splitlines()
    # The documented names end in _ms and _us, and all other names follow them.
    assert [line for line in output if "should not contain abbreviated units" not in line] == []


JSON = {"Accept": "application/json"}


class Gauges:
    """The gauges of the metrics page."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def seen(self) -> dict[str, Any]:
        page = ok(self._api.call("GET", "/v0/metrics", headers=JSON))
        return {name.removeprefix("topics_"): value for name, value in page.items()}

    def wait_for(self, **expected: Any) -> dict[str, Any]:
        """Wait until the page has these values, and return it."""
        return until(self.seen, lambda page: {name: page[name] for name in expected} == expected)


def classes(page: dict[str, Any]) -> dict[str, int]:
    return {row["class"]: row["value"] for row in page["topics_by_class"] if row["value"]}


def syncs_are_timed(page: dict[str, Any]) -> bool:
    return bool(page["wal_fsync_latency_us"]["count"] == page["wal_fsyncs_total"] > 0)


@pytest.mark.slow
def test_the_gauges_reflect_clients_a_killed_shard_and_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server, Api(server.address) as api:
        gauges = Gauges(api)
        gauges.wait_for(topics=0, wal_read_only=0)
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
        page = gauges.wait_for(
            topics=4,
            queue_topics=2,
            records_live=3 + 10 + 6,
            routers=0,
            queue_leases_in_flight=2,
            queue_delayed=2,
            idempotency_keys=1,
        )
        assert classes(page) == {"fsync": 2, "memory": 1, "ephemeral": 1}
        gauges.wait_for(bytes_live=sum(api.state(name)["bytes"] for name in names))
        until(gauges.seen, syncs_are_timed)
        for name in (jobs, more):
            Queue(api, name).extend([1], lease_ms=SHORT_MS)
        gauges.wait_for(queue_leases_in_flight=0)

        ok(api.call("PUT", "/v0/routers/r", {"source": other, "dest": f"{other}-dest"}), 201)
        ok(api.append(other, 11))
        forwarded = [{"router": "r", "value": 1}]
        gauges.wait_for(topics=5, routers=1, records_live=21, router_forwarded_total=forwarded)

        server.replace("shard 1")
        assert all(row["value"] == 3 for row in gauges.seen()["shard_state"])
        lost = sum(api.state(name)["count"] == 0 for name in (jobs, more))
        gauges.wait_for(topics=5, records_live=21 - 3 * lost)
        until(gauges.seen, syncs_are_timed)

        ok(api.delete(one))
        ok(api.call("POST", f"/v0/topics/{other}/delete", {"before_seq": 6}))
        before = gauges.wait_for(topics=4, records_live=21 - 3 * lost - 3 - 5)
        server.stop()
    with Server(tmp_path / "data") as server, Api(server.address) as api:
        page = until(Gauges(api).seen, lambda page: page["topics"] == 4)
        left = sum(api.state(name)["count"] for name in api_names(api))
        page = Gauges(api).wait_for(topics=4, routers=1, records_live=left)
        assert left <= before["records_live"]
        assert page["checkpoint_bytes"] > 0


def api_names(api: Api) -> list[str]:
    return [item["topic"] for item in ok(api.listing())["topics"]]
