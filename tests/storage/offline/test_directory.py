"""What is read without the server is what the server said before its stop."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.offline_scenes import HOUR_MS, Row, Scene, row
from topics.storage.offline.directory import OfflineDirectory, OfflineTopic
from topics.storage.offline.reader import PieceReader

pytestmark = pytest.mark.slow


def rows_of(topic: OfflineTopic) -> list[Row]:
    return [
        row(record)
        for piece in topic.pieces()
        for page in PieceReader(piece).pages()
        for record in page
    ]


def snapshot_of(path: Path) -> dict[str, tuple[int, int]]:
    return {
        str(found.relative_to(path)): (found.stat().st_size, found.stat().st_mtime_ns)
        for found in path.rglob("*")
    }


def test_every_topic_has_the_records_that_its_server_gave(scene: Scene) -> None:
    with OfflineDirectory(scene.path) as directory:
        assert sorted(directory.topics) == sorted(scene.answers)
        assert "gone" not in directory.topics
        for name, topic in directory.topics.items():
            assert rows_of(topic) == scene.answers[name], name
            assert topic.count == len(scene.answers[name]), name


def test_records_that_no_segment_holds_are_there(unsealed: Scene) -> None:
    with OfflineDirectory(unsealed.path) as directory:
        assert sorted(directory.topics) == sorted(unsealed.answers)
        for name, topic in directory.topics.items():
            assert topic.sealed_seq == 0
            assert rows_of(topic) == unsealed.answers[name], name
            assert topic.count == len(unsealed.answers[name]), name


def test_the_scene_has_what_it_is_for(scene: Scene) -> None:
    counts = {name: len(rows) for name, rows in scene.answers.items()}
    assert counts["plain"] == 4000
    assert counts["capped"] == 700
    assert counts["trimmed"] == 500
    assert 0 < counts["erased"] < 1000
    assert counts["again"] == 40
    assert counts["jobs"] == 350
    assert counts["copies.a"] == counts["copies.b"] == counts["copies.c"] == 1205
    assert counts["emptied"] == counts["volatile"] == 0
    with OfflineDirectory(scene.path) as directory:
        sealed = {name: topic.sealed_seq for name, topic in directory.topics.items()}
    assert sealed["plain"] == 4000
    assert any(sealed[name] < scene.states[name]["head_seq"] for name in sealed), "some is in logs"


def test_a_topic_says_its_state(scene: Scene) -> None:
    with OfflineDirectory(scene.path) as directory:
        for name, topic in directory.topics.items():
            state = scene.states[name]
            assert topic.epoch == state["epoch"], name
            assert (topic.head_seq, topic.earliest_seq) == (
                state["head_seq"],
                state["earliest_seq"],
            ), name
            assert topic.config.cap_records == state["config"]["cap_records"], name


def test_nothing_in_the_directory_changes(scene: Scene) -> None:
    before = snapshot_of(scene.path)
    with OfflineDirectory(scene.path) as directory:
        assert sum(len(rows_of(topic)) for topic in directory.topics.values())
    assert snapshot_of(scene.path) == before


def test_age_takes_what_is_too_old_when_it_is_read(scene: Scene) -> None:
    last_ts = scene.answers["aging"][-1][1]
    with OfflineDirectory(scene.path, names=["aging"], now_ts=last_ts + HOUR_MS + 1) as directory:
        topic = directory.topics["aging"]
        assert rows_of(topic) == []
        assert (topic.count, topic.earliest_seq) == (0, 1501)


def test_only_the_wanted_topics_are_there(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["plain", "nothing"]) as directory:
        assert [*directory.topics] == ["plain"]


def test_a_range_of_seqs_is_read(scene: Scene) -> None:
    with OfflineDirectory(scene.path, names=["erased"]) as directory:
        pieces = [*directory.topics["erased"].pieces(300, 420, max_records=50)]
        found = [
            row(record)
            for piece in pieces
            for page in PieceReader(piece).pages()
            for record in page
        ]
    assert found == [each for each in scene.answers["erased"] if 300 <= each[0] <= 420]
    assert all(piece.count <= 50 for piece in pieces)


def test_no_file_is_opened_to_be_written(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    open_file = os.open

    def opened(path: str, flags: int, *more: int) -> int:
        assert flags & (os.O_ACCMODE | os.O_CREAT) == os.O_RDONLY, path
        return open_file(path, flags, *more)

    monkeypatch.setattr(os, "open", opened)
    with OfflineDirectory(scene.path) as directory:
        assert rows_of(directory.topics["long"]) == scene.answers["long"]
