"""export and import: a topic is restored once and unchanged, and a damaged file is refused."""

from __future__ import annotations

import gzip
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run, started
from tests.client.conftest import url_of
from tests.support.program import Program
from tests.support.server import Server
from topics.client import Record, Topics


def content(client: Topics, name: str) -> list[Any]:
    return [
        (bytes(each.raw_data), each.tag, each.node, each.meta)
        for each in client.topic(name).read()
        if isinstance(each, Record)
    ]


@pytest.fixture
def filled(client: Topics, name: str) -> str:
    client.topic(name).put(ttl_ms=86_400_000, durability="memory")
    records_with_fields = [{"data": {"n": 1.5}, "tag": "t", "node": "n", "meta": {"a": [1]}}]
    client.topic(name).append(None, "x", records=records_with_fields)
    client.topic(name).append(*range(2400))
    return name


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_an_imported_topic_equals_the_exported_one(
    topics: Run, client: Topics, filled: str, tmp_path: Path, suffix: str
) -> None:
    file = str(tmp_path / f"dump{suffix}")
    done = topics("export", "--json", filled, "-o", file)
    assert done.objects[0]["topics"] == {filled: 2403}
    assert [path.name for path in tmp_path.glob("dump*")] == [f"dump{suffix}"]
    before, config = content(client, filled), client.topic(filled).state().config
    client.topic(filled).drop()
    first = topics("import", "--json", file)
    assert (first.objects[0]["topic"], first.objects[0]["appended"]) == (filled, 2403)
    assert content(client, filled) == before
    window = {"idempotency_window_ms": 7 * 86_400_000}
    assert client.topic(filled).state().config == {**config, **window}
    again = topics("import", "--json", file, file)
    assert [row["deduped"] for row in again.objects] == [2403, 2403]
    assert len(content(client, filled)) == 2403


def test_an_export_has_the_documented_format(topics: Run, client: Topics, name: str) -> None:
    client.topic(name).put(cap_records=2)
    client.topic(name).append(1, 2, 3)
    client.topic(f"{name}-b").append("b")
    lines = topics("export", name, f"{name}-b").objects
    kinds = [next(iter(line)) for line in lines]
    assert kinds == ["header", "tombstone", "topic", "topic", "header", "topic", "footer"]
    assert lines[0]["header"]["config"]["cap_records"] == 2
    assert lines[-1]["footer"]["topics"] == {name: 2, f"{name}-b": 1}
    assert lines[2] == topics("read", name, "--from", "2").objects[0]


def test_an_imported_queue_has_its_jobs(
    topics: Run, client: Topics, name: str, tmp_path: Path
) -> None:
    queue = client.queue(name)
    queue.put(max_deliveries=3)
    queue.append("a", "b")
    queue.ack("n", *queue.claim("n", 1))
    file = str(tmp_path / "dump")
    assert topics("export", name, "-o", file).code == 0
    queue.drop()
    assert topics("import", file).code == 0
    assert [job.data for job in queue.claim("n", 9)] == ["b"]
    assert queue.state().config["max_deliveries"] == 3


def test_several_topics_are_piped_into_one(topics: Run, client: Topics, name: str) -> None:
    client.topic(f"{name}.a").append(1)
    client.topic(f"{name}.b").append(2)
    dump = topics("export", f"{name}.*").out
    for _ in range(2):
        assert topics("import", "-", "--to", name, given=dump).code == 0
    assert [data for data, *_ in content(client, name)] == [b"1", b"2"]


@pytest.mark.parametrize("how", ["cut", "changed", "twice", "no footer"])
@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
def test_no_record_of_a_damaged_file_is_appended(
    topics: Run, client: Topics, filled: str, tmp_path: Path, how: str, is_packed: bool
) -> None:
    file = tmp_path / "dump"
    topics("export", filled, "-o", str(file), *(["--gzip"] if is_packed else []))
    file_bytes = file.read_bytes()
    plain = gzip.decompress(file_bytes) if is_packed else file_bytes
    if how == "no footer":
        damaged = plain[: plain.rindex(b"\n", 0, -1) + 1]
        damaged = gzip.compress(damaged) if is_packed else damaged
    else:
        damaged = {
            "cut": file_bytes[: len(file_bytes) // 2],
            "changed": file_bytes[:400] + bytes([file_bytes[400] ^ 1]) + file_bytes[401:],
            "twice": file_bytes + file_bytes,
        }[how]
    file.write_bytes(damaged)
    done = topics("import", "--json", str(file), "--to", f"{filled}-new")
    assert (done.code, done.out, done.error["code"]) == (1, "", "damaged_export")
    assert topics("read", f"{filled}-new").code == 4


def test_a_pipe_is_checked_at_its_end(topics: Run, client: Topics, filled: str, name: str) -> None:
    dump = topics("export", filled).out
    cut = "".join(dump.splitlines(keepends=True)[:-1])
    done = topics("import", "-", "--to", f"{filled}-new", given=cut)
    assert done.code == 1
    assert "truncated or was changed" in done.err.splitlines()[-1]
    assert re.search("appended 2,000 records .* run the command again", done.err)
    done = topics("import", "-", "--to", f"{filled}-new", given=dump.replace('"x"', '"x'))
    assert (done.code, done.out) == (1, "")
    assert "line 3: the export is truncated or was changed" in done.err


def test_an_export_is_not_imported_into_its_own_topic(
    topics: Run, client: Topics, name: str, tmp_path: Path
) -> None:
    other, file = f"{name}-other", str(tmp_path / "dump")
    client.topic(other).append("other")
    client.topic(name).append(1, 2)
    topics("export", other, name, "-o", file)
    dump = Path(file).read_text()
    client.topic(other).drop()
    for options, given in (([file], ""), ([file, "--to", name], ""), (["-"], dump)):
        done = topics("import", "--json", *options, given=given)
        assert done.code == 2
        assert '"own_export"' in done.err
        assert "--again appends them" in done.err
        assert len(content(client, name)) == 2
        assert [*client.topics(other)] == [] or options == ["-"]
    assert topics("import", file, "--to", f"{name}-new").code == 0
    assert topics("import", file, "--again").code == 0
    assert [data for data, *_ in content(client, name)] == [b"1", b"2", b"1", b"2"]
    client.topic(name).drop()
    assert topics("import", file).code == 0
    assert len(content(client, name)) == 2


def test_an_import_reports_that_deleted_records_were_appended_before(
    topics: Run, client: Topics, filled: str, tmp_path: Path
) -> None:
    file, copy = str(tmp_path / "dump"), f"{filled}-copy"
    topics("export", filled, "-o", file)
    topics("import", file, "--to", copy)
    client.topic(copy).delete(before=5000)
    again = topics("import", file, "--to", copy)
    assert "2,403 records appended before, --again appends them again" in again.err
    topics("import", file, "--to", copy, "--again")
    assert content(client, copy) == content(client, filled)


def test_an_import_with_again_creates_topics_with_their_config(
    topics: Run, client: Topics, filled: str, tmp_path: Path
) -> None:
    file, config = str(tmp_path / "dump"), client.topic(filled).state().config
    topics("export", filled, "-o", file)
    client.topic(filled).drop()
    assert topics("import", file, "--again").code == 0
    window = {"idempotency_window_ms": 7 * 86_400_000}
    assert client.topic(filled).state().config == {**config, **window}


def test_invalid_arguments_missing_topics_and_unreachable_servers_are_errors(
    topics: Run, name: str, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_text("hello\n")
    nowhere = ("--url", "http://127.0.0.1:1")
    for arguments, code in (
        (("export",), 2),
        (("export", "not-there", "-o", str(tmp_path / "x")), 4),
        (("export", "a", "-o", str(tmp_path)), 2),
        (("export", "a", *nowhere), 6),
        (("import",), 2),
        (("import", "/not/there"), 2),
        (("import", str(foreign)), 2),
        (("import", "-", *nowhere), 6),
    ):
        done = topics(*arguments)
        assert (done.code, done.out) == (code, ""), arguments
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_an_interrupted_import_continues_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "dump"
    with Server(tmp_path / "data", shards=2) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        address = url_of(server)
        with Topics(address) as client:
            for start in range(0, 20_000, 1000):
                client.topic("a").append(*range(start, start + 1000))
            with run(server, "export", "a", "-o", str(file)) as process:
                until(lambda: file.with_name("dump.part").exists())
                server.restart("stop")
            ended(process)
            with run(server, "import", str(file), "--to", "b") as process:
                until(lambda: count(client, "b") >= 2000)
                process.send_signal(signal.SIGINT)
            assert process.returncode in (0, 130)
            with run(server, "import", str(file), "--to", "b") as process:
                until(lambda: count(client, "b") >= 4000)
                server.restart("kill")
            ended(process)
            assert [int(data) for data, *_ in content(client, "b")] == [*range(20_000)]


def run(server: Server, *arguments: str) -> Program:
    return started("--url", url_of(server), *arguments, stderr=None)


def ended(process: Program) -> None:
    assert process.returncode == 0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def count(client: Topics, name: str) -> int:
    return sum(info.count for info in client.topics(name))
