"""Repair of a log: exactly the records of unreadable frames are lost and reported, all others
remain.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.damage import (
    Seen,
    findings,
    flip,
    frames,
    opened,
    repaired,
    seen,
    seen_once,
    small,
    stepped,
    without,
)
from tests.support.log import Client, log_files, state
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind
from topics.storage.disk import Damaged
from topics.storage.recovery.log_repair import max_seqs


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped():
        yield


@pytest.mark.parametrize("where", ["header", "body", "length"])
def test_a_flipped_bit_loses_only_the_write_that_it_damages(tmp_path: Path, where: str) -> None:
    before = small(tmp_path)
    offset, header = frames(tmp_path, FrameKind.APPEND)[6]
    assert header.first_seq == 5, "of topic a"
    flip(log_files(tmp_path)[0], offset + {"header": 24, "length": 48, "body": 100}[where])
    damaged = log_files(tmp_path)[0].read_bytes()
    with pytest.raises(Damaged):
        opened(tmp_path)
    lines = repaired(tmp_path)
    assert 'topic "a": seqs 5 to 6 are lost' in lines
    assert any("idempotency key 'k2'" in line for line in lines)
    assert not findings(tmp_path)
    (kept,) = (tmp_path / "wal" / "00").glob("*.damaged")
    assert kept.read_bytes() == damaged
    after = seen_once(tmp_path)
    assert after == Seen(without(before, "a", 5, 6), {**before.reported, "a": {5, 6}})


def test_the_lost_last_write_of_a_topic_is_reported_and_its_seqs_are_not_reused(
    tmp_path: Path,
) -> None:
    before = small(tmp_path)
    file, (offset, _) = log_files(tmp_path)[0], frames(tmp_path, FrameKind.APPEND)[-1]
    flip(file, offset + FRAME_HEADER_BYTES + 20)
    assert 'topic "q": seqs 5 to 5 are lost' in repaired(tmp_path)
    client = opened(tmp_path)
    assert seen(client).shown == without(before, "q", 5)
    assert client.append("q", "next") == (6, False)
    client.kill()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_no_seq_is_reused_if_the_topic_of_the_lost_frame_is_unknown(
    tmp_path: Path, end: str
) -> None:
    before = small(tmp_path, end)
    offset, _ = frames(tmp_path, FrameKind.APPEND)[-1]
    for at in (24, 40):  # The topic, and more fields
        flip(log_files(tmp_path)[0], offset + at, 5)
    lines = repaired(tmp_path)
    if end == "kill":
        next_seq = 4 + max_seqs(FRAME_HEADER_BYTES)
        assert (
            f'topic "q": may have lost records after seq 4; new records continue after {next_seq}'
            in lines
        )
    else:
        assert 'topic "q": seqs 5 to 5 are lost' in lines, "the checkpoint contains the head"
    client = opened(tmp_path)
    assert seen(client).shown == without(before, "q", 5)
    seq, _ = client.append("q", "next")
    assert seq > 5
    client.kill()
    client = opened(tmp_path)
    assert client.append("q", "later") == (seq + 1, False)
    client.kill()


@pytest.mark.parametrize("kind", [FrameKind.DELETE, FrameKind.TOPIC, FrameKind.START])
def test_a_lost_change_is_reported_and_not_applied(tmp_path: Path, kind: FrameKind) -> None:
    before = small(tmp_path, "kill")
    offset, header = frames(tmp_path, kind)[-1 if kind == FrameKind.TOPIC else 0]
    flip(log_files(tmp_path)[0], offset + (64 + header.body_len // 2 if header.body_len else 40))
    (line, *_) = repaired(tmp_path)
    assert f"a {kind.name} frame" in line
    assert not findings(tmp_path)
    client = opened(tmp_path)
    shown = seen(client).shown
    assert all(shown[name].items() >= records.items() for name, records in before.shown.items())
    assert (1 in shown["b"]) == (kind == FrameKind.DELETE)
    assert (client.engine.topic("a").config.cap_records == 0) == (kind == FrameKind.TOPIC)
    client.kill()


def test_a_topic_whose_creation_is_lost_is_dropped_and_its_id_is_not_reused(tmp_path: Path) -> None:
    before = small(tmp_path, "kill")
    offset, header = frames(tmp_path, FrameKind.TOPIC)[2]
    flip(log_files(tmp_path)[0], offset + FRAME_HEADER_BYTES + 9)
    lines = repaired(tmp_path)
    topic_lines = [line for line in lines if f"topic {header.topic_id} (name unknown)" in line]
    assert len(topic_lines) == 5, "one line for each write"
    client = opened(tmp_path)
    assert seen(client).shown == {name: before.shown[name] for name in ("a", "q")}
    client.append("b", "again")
    assert client.engine.topic("b").id > header.topic_id
    client.kill()


def test_a_topic_is_restored_from_its_next_config_frame_and_its_loss_is_reported(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.append("b", 1, 2)
    client.put("b", cap_records=5)
    client.append("b", 3)
    client.kill()
    Client(tmp_path).kill()
    offset, _ = frames(tmp_path, FrameKind.TOPIC)[0]
    flip(log_files(tmp_path)[0], offset + FRAME_HEADER_BYTES + 9)
    repaired(tmp_path)
    after = seen_once(tmp_path)
    assert [*after.shown["b"]] == [3]
    assert after.reported["b"] == {1, 2}


def test_a_deleted_topic_stays_deleted_without_its_delete_frame_if_its_name_was_reused(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.append("b", 1, 2)
    client.delete("b")
    client.append("b", 3)
    before = state(client)
    client.kill()
    Client(tmp_path).kill()
    offset, _ = frames(tmp_path, FrameKind.TOPIC_DELETED)[0]
    flip(log_files(tmp_path)[0], offset + 40)
    repaired(tmp_path)
    client = opened(tmp_path)
    assert client.records("b") == before["b"]["records"]
    assert len(client.engine.by_id) == 1
    client.kill()
