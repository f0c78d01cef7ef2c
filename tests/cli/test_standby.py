"""standby: rounds, the state of the copy, a restore of any generation, and a promotion."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.api import Api, ok
from tests.support.server import Server
from topics.errors import ExitCode

pytestmark = pytest.mark.slow


@pytest.fixture
def source(tmp_path: Path, topics: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of its own with a topic, which the command line uses."""
    with Server(tmp_path / "data", shards=2) as server:
        monkeypatch.setenv("TOPICS_URL", url_of(server))
        with Api(server.address) as api:
            ok(api.put("orders", {"durability": "disk"}), 201)
            ok(api.append("orders", *range(100)))
        yield server


def appended(server: Server, *values: object) -> None:
    with Api(server.address) as api:
        ok(api.append("orders", *values))


def values_in(directory: Path, topic: str = "orders") -> list[object]:
    with Server(directory, shards=2) as server, Api(server.address) as api:
        return [record["data"] for record in api.read(topic)]


def test_each_round_adds_a_generation_and_transfers_only_new_data(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    sizes = []
    for number in range(1, 4):
        done = topics("--json", "standby", "run", copy, "--once")
        assert done.code == 0
        (found,) = done.objects
        assert found["generation"] == number
        sizes.append(found["received_bytes"])
        appended(source, f"after {number}")
    assert sizes[1] < sizes[0] / 2
    for number in range(1, 4):
        folder = tmp_path / f"restored-{number}"
        assert topics("restore", f"{copy}@{number}", str(folder)).code == 0
        assert topics("verify", str(folder)).code == 0
        assert values_in(folder) == [*range(100), *(f"after {n}" for n in range(1, number))]
    assert topics("restore", copy, str(tmp_path / "newest")).code == 0
    assert topics("verify", str(tmp_path / "newest")).code == 0
    assert values_in(tmp_path / "newest") == [*range(100), "after 1", "after 2"]
    assert topics("restore", f"{copy}@x", str(tmp_path / "missing")).code == ExitCode.USAGE
    missing = topics("--json", "restore", f"{copy}@9", str(tmp_path / "missing"))
    assert (missing.code, missing.error["code"]) == (ExitCode.DAMAGED, "bad_backup")
    assert "it has: 1, 2, 3" in missing.error["message"]


def test_only_the_newest_generations_and_their_files_are_kept(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for number in range(4):
        appended(source, number)
        assert topics("standby", "run", str(copy), "--once", "--keep", "2").code == 0
    assert [path.stem for path in sorted((copy / "generations").glob("*.json"))] == [
        "000000000003",
        "000000000004",
    ]
    status = topics("--json", "standby", "status", str(copy)).objects[0]
    assert status["generations"] == [3, 4]
    assert not [path for path in copy.rglob("*") if path.suffix in (".part", ".new")]
    assert {path.stat().st_mode & 0o777 for path in copy.rglob("*.wal.*")} == {0o600}


def test_the_status_has_the_age_and_what_the_copy_lacks(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    assert topics("standby", "status", copy).code == ExitCode.USAGE
    assert topics("standby", "run", copy, "--once").code == 0
    appended(source, "x" * 1000)
    done = topics("--json", "standby", "status", copy)
    assert done.code == 0
    (found,) = done.objects
    assert found["is_reachable"]
    assert found["age_ms"] < 60_000
    assert found["behind"]["writes"] >= 1
    assert found["behind"]["bytes"] > 1000
    assert topics("standby", "status", copy, "--max-age", "1ms").code == ExitCode.FAILED
    assert topics("standby", "run", copy, "--once").code == 0
    (Path(copy) / "generations" / "000000000002.json").write_text("{}")
    damaged = topics("--json", "standby", "status", copy)
    assert damaged.code == ExitCode.DAMAGED
    assert (damaged.objects[0]["generations"], damaged.objects[0]["damaged"]) == ([1], [2])
    (Path(copy) / "generations" / "000000000002.json").unlink()
    source.stop()
    done = topics("standby", "status", copy)
    assert done.code == ExitCode.UNREACHABLE
    assert "does not respond" in done.out
    assert "unknown" in done.out


def test_a_promoted_copy_continues_and_reports_the_lost_seqs(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    assert topics("standby", "run", str(copy), "--once").code == 0
    with Api(source.address) as api:
        epoch = api.state("orders")["epoch"]
    appended(source, "lost")
    refused = topics("--json", "standby", "promote", str(copy))
    assert (refused.code, refused.error["code"]) == (ExitCode.FAILED, "source_responds")
    source.stop()
    done = topics("standby", "promote", str(copy))
    assert done.code == 0
    assert "later writes are lost" in done.err
    assert topics("verify", str(copy)).code == 0
    assert not {"files", "generations", "standby.json"} & {path.name for path in copy.iterdir()}
    with Server(copy, shards=2) as server, Api(server.address) as api:
        assert api.state("orders")["epoch"] == epoch
        ok(api.append("orders", "new"))
        # A reader that had read the lost record.
        page = ok(api.diff("orders", from_seq=101))
        assert page["tombstone"]["gap_from"] == 102
        assert [record["data"] for record in page["records"]] == ["new"]
        # The skipped seqs do not count as the last records.
        newest = topics("read", "orders", "--reverse", "-n", "2", "--url", url_of(server)).objects
        assert [each.get("data", "lost") for each in newest] == ["new", "lost", 99]
        assert newest[1]["tombstone"]["gap_from"] == 101
        last = topics("read", "orders", "--from", "-2", "--url", url_of(server)).objects
        assert last == newest[::-1]
        # A repeated promotion must not stop the new server, which has locked the directory.
        again = topics("standby", "promote", str(copy))
        assert again.code == 0
        assert "was promoted before" in again.err
        assert api.state("orders")["count"] == 101
    assert topics("standby", "run", str(copy), "--once").code == ExitCode.USAGE


def test_a_copy_promoted_as_new_has_new_epochs(topics: Run, source: Server, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert topics("standby", "run", str(copy), "--once").code == 0
    with Api(source.address) as api:
        epoch = api.state("orders")["epoch"]
    assert topics("standby", "promote", "--force", "--as-new", str(copy)).code == 0
    with Server(copy, shards=2) as server, Api(server.address) as api:
        state = api.state("orders")
        assert state["epoch"] > epoch
        assert state["head_seq"] == 100


def test_a_former_source_does_not_start_beside_the_record_of_a_promotion(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    fence, copy = tmp_path / "fence", tmp_path / "copy"
    source.stop()
    source.env["TOPICS_FENCE"] = str(fence)
    source.start()
    assert topics("--url", url_of(source), "standby", "run", str(copy), "--once").code == 0
    source.stop()
    assert topics("standby", "promote", str(copy), "--fence", str(fence)).code == 0
    with pytest.raises(AssertionError, match="is a former source"):
        source.start()
    with Server(copy, shards=2, fence=fence) as server, Api(server.address) as api:
        assert api.state("orders")["count"] == 100


def test_only_one_standby_of_a_source_is_promoted_with_a_fence(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    fence, first, second = (tmp_path / name for name in ("fence", "first", "second"))
    for copy in (first, second):
        assert topics("standby", "run", str(copy), "--once").code == 0
    source.stop()
    assert topics("standby", "promote", str(first), "--fence", str(fence)).code == 0
    before = fence.read_bytes()
    refused = topics("--json", "standby", "promote", str(second), "--fence", str(fence))
    assert (refused.code, refused.error["code"]) == (ExitCode.FAILED, "fenced")
    assert f"{first} on " in refused.error["message"]
    assert fence.read_bytes() == before
    assert topics("standby", "status", str(second)).code == ExitCode.UNREACHABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the owner of files")
def test_the_owner_of_the_directory_owns_the_promoted_files(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    assert topics("standby", "run", str(copy), "--once").code == 0
    for path in (copy, *copy.rglob("*")):
        os.chown(path, 65_534, 65_534)
    assert topics("standby", "promote", "--force", str(copy)).code == 0
    assert {path.stat().st_uid for path in (copy, *copy.rglob("*"))} == {65_534}


@pytest.mark.parametrize("number", [1, 3])
def test_a_damaged_manifest_does_not_prevent_a_promotion(
    topics: Run, source: Server, tmp_path: Path, number: int
) -> None:
    copy = tmp_path / "copy"
    for _ in range(3):
        assert topics("standby", "run", str(copy), "--once").code == 0
    source.stop()
    (copy / "generations" / f"{number:012d}.json").write_text("{}")
    done = topics("--json", "standby", "promote", str(copy))
    assert done.code == 0
    assert done.objects[0]["generation"] == (3 if number == 1 else 2)


def test_a_failed_promotion_leaves_all_generations_usable(
    topics: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy"
    with Server(tmp_path / "data", shards=2, wal_file_bytes=1 << 16) as server:
        monkeypatch.setenv("TOPICS_URL", url_of(server))
        with Api(server.address) as api:
            ok(api.put("orders", {"durability": "disk"}), 201)
            for start in range(0, 1000, 100):
                numbers = range(start, start + 100)
                ok(api.append("orders", *([n, "x" * 200] for n in numbers)))
            _wait_for(lambda: any((tmp_path / "data" / "segment").rglob("*.seg")))
            assert topics("standby", "run", str(copy), "--once").code == 0
            ok(api.call("POST", "/v0/topics/orders/delete", {"before_seq": 501}))
        assert topics("standby", "run", str(copy), "--once").code == 0
    done = topics("standby", "promote", str(copy), "--fence", str(tmp_path / "none" / "fence"))
    assert done.code == ExitCode.FAILED
    assert not (copy / ".promoting").exists()
    assert topics("standby", "status", str(copy), "--verify").code == ExitCode.UNREACHABLE
    for number, count in ((1, 1000), (2, 500)):
        folder = tmp_path / f"restored-{number}"
        assert topics("restore", f"{copy}@{number}", str(folder)).code == 0
        assert len(values_in(folder)) == count
    assert topics("standby", "promote", f"{copy}@1").code == 0
    assert len(values_in(copy)) == 1000


def test_damage_of_the_copy_is_found_and_an_older_generation_is_promoted(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for number in range(2):
        assert topics("standby", "run", str(copy), "--once").code == 0
        appended(source, "x" * 100, number)
    source.env["TOPICS_PORT"] = str(source.address[1])
    source.stop()
    source.start()  # so that the log is sent again, to another file
    assert topics("standby", "run", str(copy), "--once").code == 0
    source.stop()
    for log in (copy / "files").glob("wal/*/*.3"):
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
    assert topics("standby", "status", str(copy)).code == ExitCode.UNREACHABLE
    found = topics("--json", "standby", "status", str(copy), "--verify")
    assert found.code == ExitCode.DAMAGED
    assert found.objects[0]["damaged_files"]
    assert topics("standby", "promote", str(copy)).code == ExitCode.DAMAGED
    assert topics("standby", "promote", f"{copy}@9").code == ExitCode.DAMAGED
    assert topics("standby", "promote", f"{copy}@2").code == 0
    assert values_in(copy) == [*range(100), "x" * 100, 0]


def test_a_server_without_the_copied_data_is_refused(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    appended(source, *range(1000))
    assert topics("standby", "run", str(copy), "--once").code == 0
    source.stop()
    with Server(tmp_path / "empty", shards=2, port=source.address[1]):
        refused = topics("--json", "standby", "run", str(copy), "--once")
        assert (refused.code, refused.error["code"]) == (ExitCode.FAILED, "source_older")
        assert "the server was restarted since then" in topics("standby", "status", str(copy)).out
        assert topics("standby", "run", str(copy), "--once", "--accept-older").code == 0
    assert topics("--json", "standby", "status", str(copy)).objects[0]["generations"] == [1, 2]


def test_a_used_metrics_port_is_named(topics: Run, source: Server, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        refused = topics("standby", "run", str(tmp_path / "copy"), "--metrics-port", port)
    assert refused.code == ExitCode.FAILED
    assert f"--metrics-port {port}: Address already in use" in refused.err


def test_a_loop_continues_after_failures_and_stops_for_a_promotion(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    copy, port = tmp_path / "copy", _free_port()
    source.env["TOPICS_PORT"] = str(source.address[1])
    run = started(
        *("standby", "run", str(copy), "--every", "100ms", "--metrics-port", str(port)),
        *("--url", url_of(source)),
    )
    with run:
        _wait_for(lambda: (copy / "generations" / "000000000002.json").exists())
        other = topics("standby", "run", str(copy), "--once")
        assert other.code == ExitCode.USAGE
        assert f"used by another process ({run.pid})" in other.err
        found = _metrics(port)
        assert found["topics_standby_generation"] >= 2
        assert found["topics_standby_age_seconds"] < 60
        source.stop()
        _wait_for(lambda: _metrics(port)["failed"] > 0)
        source.start()
        appended(source, "later")
        before = _metrics(port)["topics_standby_generation"]
        _wait_for(lambda: _metrics(port)["topics_standby_generation"] > before + 1)
        source.stop()
        assert topics("standby", "promote", str(copy)).code == 0
        run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert values_in(copy) == [*range(100), "later"]


def test_a_directory_with_other_files_or_of_another_server_is_refused(
    topics: Run, source: Server, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").touch()
    assert topics("standby", "run", str(other), "--once").code == ExitCode.USAGE
    copy = str(tmp_path / "copy")
    assert topics("standby", "run", copy, "--once").code == 0
    url = url_of(source).replace("127.0.0.1", "localhost")
    refused = topics("--url", url, "standby", "run", copy, "--once")
    assert refused.code == ExitCode.USAGE
    assert "is a standby of" in refused.err


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _metrics(port: int) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.labels.get("end", sample.name): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
