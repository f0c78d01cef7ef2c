"""A payload is written once in each shard that has the source or a dest, with any fan-out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.copies import kept, passed, route
from tests.support.log_bytes import log_length
from tests.support.queues import until
from tests.support.routers import names_for
from tests.support.server import Server

FAN_OUT = 20
DEST_BYTES = {"at_least_once": 24, "exactly_once": 64}  # that each dest may add to a log
FRAMES_BYTES = 1024  # of all other frames
MIB = 1 << 20
CLASSES = ("disk", "fsync")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("log") / "data", shards=2) as server:
        yield server


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(server.address) as api:
        yield api


def log_files(data_dir: Path) -> set[Path]:
    """Return the log files. A copy can refer only to a payload in the same file, so the first copy
    in a new file writes the payload again (decision 0058).
    """
    return {*(data_dir / "wal").rglob("*.wal")}


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize(
    "size", [100, pytest.param(MIB - 100, marks=pytest.mark.slow)], ids=["100 B", "1 MiB"]
)
def test_a_payload_is_written_once_with_any_fan_out(
    server: Server, api: Api, topic: str, durability: str, guarantee: str, size: int
) -> None:
    source, *dests = names_for(topic, [0] + [0, 1] * (FAN_OUT // 2))
    ok(api.put(source, {"durability": durability}), 201)
    for dest in dests:
        ok(api.put(dest, {"durability": durability}), 201)
    names = [route(api, source, dest, guarantee=guarantee) for dest in dests]
    before, files = log_length(server.data_dir), log_files(server.data_dir)
    ok(api.append(source, "x" * size))
    passed(api, *names)
    grown = log_length(server.data_dir) - before
    payloads = 2 + len(log_files(server.data_dir) - files)
    most = payloads * size + DEST_BYTES[guarantee] * FAN_OUT + FRAMES_BYTES
    assert 2 * size <= grown <= most
    for dest in dests:
        assert len(kept(api, dest)[0]["data"]) == size


def test_a_copy_refers_to_a_payload_that_was_sent_to_another_shard(
    server: Server, api: Api, topic: str
) -> None:
    """The dest on the other shard is served first, so the message with the records exists."""
    source, elsewhere, here = names_for(topic, [0, 1, 0])
    first = route(api, source, elsewhere)
    ok(api.append(source, 0))
    passed(api, first)
    second = route(api, source, here)
    passed(api, second)
    before, files = log_length(server.data_dir), log_files(server.data_dir)
    ok(api.append(source, "x" * (MIB - 100)))
    passed(api, first, second)
    payloads = 2 + len(log_files(server.data_dir) - files)
    assert log_length(server.data_dir) - before <= MIB * payloads + FRAMES_BYTES


def test_a_chain_within_a_shard_writes_a_payload_once(server: Server, api: Api, topic: str) -> None:
    row = names_for(topic, [0] * 6)
    names = [route(api, *pair) for pair in itertools.pairwise(row)]
    before, files = log_length(server.data_dir), log_files(server.data_dir)
    ok(api.append(row[0], "x" * (MIB - 100)))
    passed(api, *names)
    payloads = 1 + len(log_files(server.data_dir) - files)
    assert log_length(server.data_dir) - before <= MIB * payloads + FRAMES_BYTES * len(row)
    assert len(kept(api, row[-1])[0]["data"]) == MIB - 100


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["ephemeral", *CLASSES])
def test_a_record_that_waited_until_its_log_was_sealed_is_written_once_more(
    server: Server, api: Api, topic: str, durability: str
) -> None:
    """The dests stay full until no log file contains the payloads any longer."""
    source, *dests = names_for(topic, [0, 0, 1, 1])
    ok(api.put(source, {"durability": durability}), 201)
    for dest in dests:
        ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    names = [route(api, source, dest) for dest in dests]
    large = [f"{number:02}" + "x" * (MIB // 2) for number in range(20)]
    ok(api.append(source, "first"))
    for record in large:
        ok(api.append(source, record))
    filler = f"{topic}.filler"
    for number in range(30):  # more than two log files of 64 MiB
        answer = api.append(filler, *[f"{number}" + "x" * 900_000] * 5)
        ok(answer, answer.status)
    for dest in dests:
        ok(api.put(dest, {"cap_records": 1000}))
    passed(api, *names)
    for dest in dests:
        found = until(lambda dest=dest: kept(api, dest), lambda found: len(found) == 21)  # type: ignore[misc]
        assert [record["data"] for record in found] == ["first", *large]
    for name in (source, filler, *dests):
        ok(api.delete(name))
