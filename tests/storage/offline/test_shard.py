"""A directory of a server that was killed, or copied while it ran."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.storage.offline.test_directory import rows_of
from tests.support.api import Api, ok
from tests.support.offline_scenes import Row, answer_of
from tests.support.queues import until
from tests.support.server import Server
from topics.client.http import Target, TopicsClient
from topics.storage.data_dir import DataDirectoryInUse
from topics.storage.disk import Damaged
from topics.storage.offline.directory import OfflineDirectory

pytestmark = pytest.mark.slow
SMALL_LOG_BYTES = 64 << 10
COPIES = 12


def answers_of(server: Server, *topics: str) -> dict[str, list[Row]]:
    host, port = server.address
    with TopicsClient(Target(url=f"http://{host}:{port}")) as client:
        return {topic: answer_of(client, topic) for topic in topics}


def test_what_was_acknowledged_before_a_kill_is_there(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Server(path, shards=1, wal_file_bytes=SMALL_LOG_BYTES) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"cap_records": 3000}), 201)
            for number in range(60):
                ok(api.append("t", *(f"{number} {index} {'x' * 50}" for index in range(100))))
                ok(api.call("POST", "/v0/topics/t/delete", {"before_seq": number * 40}))
            until(lambda: [*path.glob("segment/*/*.seg")])
        expected = answers_of(server, "t")
        server.kill()
    with OfflineDirectory(path) as directory:
        assert rows_of(directory.topics["t"]) == expected["t"]


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with (
        Server(path, shards=1),
        pytest.raises(DataDirectoryInUse, match="in use by process"),
        OfflineDirectory(path),
    ):
        pass


def test_a_copy_made_while_the_server_ran_gives_a_prefix_or_names_what_is_torn(
    tmp_path: Path,
) -> None:
    path, done = tmp_path / "data", threading.Event()
    with Server(path, shards=1, wal_file_bytes=SMALL_LOG_BYTES) as server:

        def write() -> None:
            with Api(server.address) as api:
                while not done.is_set():
                    api.append("t", *(f"{index} {'x' * 100}" for index in range(200)))

        writer = threading.Thread(target=write)
        writer.start()
        try:
            until(lambda: [*path.glob("segment/*/*.seg")])
            copies = [_copied(path, tmp_path / f"copy{number}") for number in range(COPIES)]
        finally:
            done.set()
            writer.join()
        expected = answers_of(server, "t")["t"]
        server.stop()
    whole = [copy for copy in copies if copy is not None]
    assert len(whole) >= COPIES // 2
    for copy in whole:
        _check_copy(copy, expected)
    with OfflineDirectory(path) as directory:
        assert rows_of(directory.topics["t"]) == expected


def _copied(path: Path, to: Path) -> Path | None:
    try:
        shutil.copytree(path, to, copy_function=shutil.copyfile)
    except (shutil.Error, FileNotFoundError):  # a file has gone under the copy
        return to if (to / "meta").exists() else None
    return to


def _check_copy(copy: Path, expected: list[Row]) -> None:
    """What is torn is named; else the copy has a prefix of the records."""
    with OfflineDirectory(copy, ignore_damage=True) as directory:
        if directory.damage:
            assert all(str(copy) in str(damage) for damage in directory.damage)
            with pytest.raises(Damaged, match=str(copy)):
                OfflineDirectory(copy)
            return
        rows = rows_of(directory.topics["t"]) if directory.topics else []
    assert rows == expected[: len(rows)]
