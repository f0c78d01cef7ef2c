"""top and doctor: their reports of a server and of a machine."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.queues import until
from tests.support.server import Server
from topics.cli import doctor
from topics.cli.measure import SYNCS, Readiness, readiness, sync_ms
from topics.cli.top import reports
from topics.client import Topics, calls

NO_SERVER = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key, and metrics of one topic."""
    data = tmp_path_factory.mktemp("guarded") / "data"
    with Server(data, shards=1, host="0.0.0.0", api_keys="secret", metrics_topics=1) as server:
        yield server


@pytest.mark.parametrize(
    "arguments",
    [
        *(["top", "--interval", "1ms"], ["top", "-n", "-1"], ["ping", "--wait", "1s"]),
        *(["ping", "--via", "pigeon"], ["ping", "-n", "0"], ["bench"], ["bench", "fly"]),
        *(["bench", "append", "--batch", "0"], ["bench", "append", "--durability", "no"]),
        ["doctor", "--data-dir", "/nowhere"],
    ],
    ids=" ".join,
)
def test_invalid_arguments_are_usage_errors(topics: Run, arguments: list[str]) -> None:
    assert topics(*arguments).code == 2


def histogram(*counts: int, bounds: Sequence[str] = ("1000", "5000", "+Inf")) -> dict[str, Any]:
    buckets = [{"le": le, "count": count} for le, count in zip(bounds, counts, strict=True)]
    return {SYNCS: {"buckets": buckets}}


def test_sync_quantiles_are_computed_from_a_histogram() -> None:
    assert sync_ms(histogram(0, 0, 0), None, 0.5) is None
    assert sync_ms(histogram(10, 10, 10), None, 0.5) == 0.5
    assert sync_ms(histogram(10, 20, 20), None, 0.75) == 3.0
    assert sync_ms(histogram(0, 0, 4), None, 0.99) == 5.0  # the last bucket has no upper bound
    assert sync_ms(histogram(9, 13, 13), histogram(9, 9, 9), 0.5) == 3.0


def test_top_shows_the_changes_of_the_interval(client: Topics, name: str) -> None:
    every = reports(client, 0.05, 5)
    assert next(every)["writes_per_s"] is None
    queue = client.queue(name)
    queue.put()
    queue.append(1, 2, 3)
    queue.claim("w")
    report = next(every)
    row = report["topics"][0]
    assert (row["topic"], row["records"], row["ready"], row["in_flight"]) == (name, 3, 2, 1)
    assert row["records_per_s"] > 0
    assert report["state"] == "ready"
    assert next(every)["topics"][0]["records_per_s"] == 0


def test_top_writes_plain_rows_to_a_pipe(topics: Run, client: Topics, name: str) -> None:
    client.topic(name).append("x" * 5000)
    client.put_router(name, name, f"{name}-copy")
    done = topics("top", "--once", "--interval", "100ms", "-n", "1000")
    assert done.code == 0
    head, rates, _disk, _, titles, *rows = done.out.splitlines()
    assert head.startswith("topics ")
    assert rates.startswith("writes ")
    assert titles.split() == ["NEW", "RECORDS", "BYTES", "READY", "IN", "FLIGHT", "TOPIC"]
    assert [row.split()[-1] for row in rows if row].count(name) == 2  # the topic and the router
    (report,) = topics("--json", "top", "--once", "--interval", "100ms").objects
    assert report["is_ready"]
    assert report["streams"].keys() == {"watch", "work", "websocket"}


def test_top_reads_the_topic_list_if_the_metrics_are_truncated(guarded: Server) -> None:
    with Topics(url_of(guarded), key="secret") as client:
        for name in "abc":
            client.topic(name).append(1)
        assert {row["topic"] for row in next(reports(client, 0.1, 5))["topics"]} >= {*"abc"}


@pytest.mark.slow
def test_top_on_a_terminal_ends_with_ctrl_c(url: str, client: Topics, name: str) -> None:
    client.topic(name).append(1)
    near, far = pty.openpty()
    with started(
        *("top", "--url", url, "--interval", "100ms"),
        stdout=far,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200", "LINES": "50"},
    ) as process:
        os.close(far)
        text = b""
        while text.count(b"TOPIC") < 3:  # drawn repeatedly
            text += os.read(near, 4096)
        process.send_signal(signal.SIGINT)
        try:
            while os.read(near, 4096):
                pass
        except OSError:  # the terminal is closed
            pass
        assert process.wait(30) == 0
        os.close(near)


@pytest.mark.slow
def test_top_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "data", shards=1) as server,
        started("top", "--json", "--interval", "100ms", "--url", url_of(server)) as process,
    ):
        reports = map(json.loads, process.stdout or ())

        def has_rates(report: Any) -> bool:
            return bool(report["is_ready"]) and report["reads_per_s"] is not None

        next(filter(has_rates, reports))
        server.env["TOPICS_PORT"] = str(server.port)
        server.kill()
        next(report for report in reports if "unreachable" in report["state"])
        server.start()
        # The server may still be starting.
        report_reconnected = next(report for report in reports if "version" in report)
        assert report_reconnected["reads_per_s"] is None
        next(filter(has_rates, reports))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.slow
def test_top_names_a_stalled_shard(topics: Run, tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server, Topics(url_of(server)) as client:
        for number in range(8):
            client.queue(f"q{number}").put()
        with server.stopped("shard 1"):
            deadline = time.monotonic() + 30
            while (ready := readiness(client)).is_ready:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert [*ready.shards.values()] == [[1]]
            report = topics("--json", "top", "--once", "--url", url_of(server)).objects[0]
            found = topics("--json", "doctor", "--url", url_of(server)).objects
        assert "shard 1" in report["state"]
        assert report["topics"]
        assert {one["check"] for one in found if not one["is_well"]} >= {"shards"}


# doctor


def test_doctor_reports_no_finding_about_a_healthy_server(topics: Run, server: Server) -> None:
    done = topics("doctor", "--data-dir", str(server.data_dir), "--json")
    assert {one["check"] for one in done.objects} >= {"server", "shards", "permissions"}
    # The disk of a test machine may be slow, full or made of memory.
    wrong = {one["check"] for one in done.objects if not one["is_well"]}
    assert wrong <= {"fsync", "disk", "free_space", "file_system"}
    assert done.code == bool(wrong)
    text = topics("doctor", "-q").out
    assert f"ok     {os.environ['TOPICS_URL']} responds.\n" in text


READY = Readiness(True, "ready", {})


@pytest.mark.parametrize(
    ("check", "metrics", "more", "what"),
    [
        ("version", {"topics_build_info": [{"version": "9.9"}]}, {}, "version 9.9"),
        ("fsync", histogram(0, 0, 4), {}, None),
        ("fsync", histogram(0, 9, 9, bounds=("100000", "1000000", "+Inf")), {}, "991 ms"),
        ("disk", {"topics_disk_free_bytes": 1 << 20}, {}, "1 MiB"),
        ("caps", {"topics_sse_connections": 9_000}, {}, "9000 of 10000 (max_sse_connections)"),
        ("caps", {"topics_limit_max": [{"limit": "max_total_bytes", "value": 9}],
                  "topics_bytes_live": 9}, {}, "9 of 9 (max_total_bytes)"),
        ("caps", {"topics_limit_max": [{"limit": "max_connections", "value": 100}],
                  "topics_connections_open": 90}, {}, "90 of 100 (max_connections)"),
        ("shards", {}, {"ready": Readiness(True, "ready", {"no_room": [1]})}, "shard 1 is no_room"),
        ("shards", {}, {"ready": Readiness(False, "not ready: x", {})}, "not ready: x"),
        ("clock", {"topics_topics_ahead_of_clock": 3}, {}, "3 topics have records with future"),
        ("lag", {"topics_router_lag_ms": [{"router": "r", "value": 120_000}],
                 "topics_router_lag_records": [{"router": "r", "value": 7}]}, {}, "2 m behind (7"),
    ],
)  # fmt: skip
def test_doctor_reports_findings_about_a_server(
    client: Topics, check: str, metrics: dict[str, Any], more: dict[str, Any], what: str | None
) -> None:
    all_metrics = client.call(calls.metrics()) | metrics
    fields = {"client": client, "metrics": all_metrics, "ready": READY, **more}
    found = [*getattr(doctor, check)(doctor.ServerState(**fields))]
    assert [what in each.what for each in found] == ([] if what is None else [True])
    assert all(each.fix for each in found)


def test_doctor_reports_dead_letters(topics: Run, client: Topics, name: str) -> None:
    queue = client.queue(name)
    queue.put(max_deliveries=1, dead_letter=f"{name}-dead")
    queue.append(1)
    queue.nack("w", *queue.claim("w"))
    assert queue.claim("w") == []
    until(lambda: queue.state().queue, lambda counts: counts and counts.dead_lettered == 1)
    done = topics("doctor")
    assert done.code == 1
    assert f"WRONG  {name}-dead holds 1 dead letters of {name}\n       Fix: topics read" in done.out
    queue.drop()


@pytest.mark.slow
def test_doctor_reports_a_server_without_keys(guarded: Server, tmp_path: Path) -> None:
    def open_to_all(url: str) -> bool:
        with Topics(url, key="secret") as client:
            return bool([*doctor.keys(doctor.ServerState(client, {}, READY))])

    assert not open_to_all(f"http://0.0.0.0:{guarded.port}")
    settings = {"host": "0.0.0.0", "allow_insecure_no_auth": 1}
    with Server(tmp_path / "data", shards=1, **settings) as server:
        assert open_to_all(f"http://0.0.0.0:{server.port}")
        assert not open_to_all(f"http://127.0.0.1:{server.port}")


def test_doctor_reports_findings_about_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts, data = tmp_path / "mounts", tmp_path / "data"
    data.mkdir(mode=0o700)
    for kind, what in (("ext4", None), ("tmpfs", "in memory"), ("nfs4", "network")):
        mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} {kind} rw 0 0\n")
        found = [*doctor.file_system(data, str(mounts))]
        assert [str(what) in each.what for each in found] == ([] if what is None else [True])
    assert [*doctor.permissions(data)] == []
    data.chmod(0o750)
    assert [each.fix for each in doctor.permissions(data)] == [f"chmod 700 {data}"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    assert len([*doctor.free_space(data)]) == 1


def test_the_readiness_report_names_shards(monkeypatch: pytest.MonkeyPatch, client: Topics) -> None:
    detail = {"replay_progress": 0.5, "shards": [{"shard": 1, "state": "recovering"}]}
    body = {
        "error": {"code": "not_ready", "message": "the log is being replayed", "detail": detail}
    }
    call = calls.Call("GET", "/", json.loads)
    monkeypatch.setattr(client, "once", lambda _: call.result(503, {}, json.dumps(body).encode()))
    expected = "not ready: the log is being replayed (50%), shard 1 recovering"
    assert str(readiness(client)) == expected
