"""Damaged frames of streamed appends: the records survive in an intact blob, and no seq is ever
assigned twice.

TOPICS_MAX_BATCH_RECORDS is above its default.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import log
from tests.support.damage import findings, flip, frames, opened, repaired, seen, stepped
from tests.support.limits import LIMITS
from tests.support.log import START, Client, append_streamed, log_files
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind, encode_frame
from topics.formats.disk.records import RecordFlags
from topics.storage.disk import Damaged
from topics.storage.recovery.blob_frames import frame_from
from topics.storage.recovery.log_repair import RECORDS_IN_BLOBS
from topics.storage.recovery.repair import ShardRepair
from topics.storage.wal.blobs import blob_name, check_blob


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "LIMITS", msgspec.structs.replace(LIMITS, batch_records=100_000))
        yield


RECORD = st.fixed_dictionaries(
    {"data": st.integers(0, 10**9) | st.text(max_size=200)},
    optional={
        "node": st.sampled_from(["n", "m"]),
        "tag": st.sampled_from(["t", "u", '"'] * 2),
        "meta": st.dictionaries(st.text(max_size=3), st.integers(), min_size=1, max_size=3),
        "delay_ms": st.integers(1, 10**6),
    },
)


def streamed(client: Client, name: str, records: list[dict[str, Any]], **body: Any) -> Path:
    """Write these records by a streamed append and return the path of the blob."""
    return append_streamed(client, name, records=records, **body)


def external(path: Path) -> tuple[int, FrameHeader]:
    """Return the offset and the header of the last frame that names a blob."""
    found = [
        each for each in frames(path, FrameKind.APPEND) if each[1].flags & RecordFlags.EXTERNAL
    ]
    return found[-1]


@pytest.mark.slow
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(records=st.lists(RECORD, min_size=1, max_size=200), node=st.none() | st.just("all"))
def test_the_frame_of_a_streamed_append_can_be_rebuilt_from_its_blob(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]], node: str | None
) -> None:
    path = tmp_path_factory.mktemp("blob")
    client = Client(path)
    client.put("q", type="queue")
    client.append("q", 0)
    blob = streamed(client, "q", records, **({"node": node} if node else {}))
    client.kill()
    offset, header = external(path)
    frame = frame_from(blob)
    assert frame is not None
    data = log_files(path)[0].read_bytes()
    seed = 0
    encoded = b"".join(map(bytes, encode_frame(frame, header.lsn, header.durable_lsn, seed)))
    assert encoded[8:] == data[offset + 8 : offset + len(encoded)], "all but the salted checksum"
    flip(blob, random.Random(len(records)).randrange(blob.stat().st_size))
    with pytest.raises(BadBlob):
        check_blob(blob)
    assert frame_from(blob) is None
    shutil.rmtree(path)


def records_by_topic(client: Client) -> dict[str, dict[int, Any]]:
    """Return all records by topic and seq."""
    found: dict[str, dict[int, Any]] = {}
    for name in client.engine.topics:
        found[name], seq, is_over = {}, 0, False
        while not is_over:
            page = client.read(name, seq, 100_000)
            for each in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks))):
                found[name][each["$seq"]] = each
            seq, is_over = page.next_from_seq, page.caught_up
    return found


def busy_log(path: Path, records: int) -> Client:
    """Write two streamed appends to one topic among writes to others. The last frames belong to
    others.
    """
    client = Client(path, file_bytes=1 << 20)
    client.put("a")
    client.put("long", durability="fsync")
    client.append("long", "first")
    client.append("a", 1)
    append_streamed(client, "long", *range(records))
    client.append("a", 2)
    append_streamed(client, "long", *range(3))
    client.append("a", 3)
    return client


def restarted(client: Client, path: Path) -> None:
    """Restart, so that the log states that all earlier frames were synced."""
    client.kill()
    Client(path, file_bytes=1 << 20).kill()


@pytest.mark.parametrize("at", [0, 30, 60, FRAME_HEADER_BYTES])
def test_a_streamed_append_with_a_destroyed_frame_is_recovered_from_its_blob(
    tmp_path: Path, at: int
) -> None:
    client = Client(tmp_path)
    client.append("a", 1)
    client.put("long")
    append_streamed(client, "long", *range(20_000), node="n")
    client.append("a", 2)
    before = records_by_topic(client)
    restarted(client, tmp_path)
    offset, header = external(tmp_path)
    path = log_files(tmp_path)[0]
    data = bytearray(path.read_bytes())
    length = min(9, header.end - header.lsn - at)
    data[offset + at : offset + at + length] = b"?" * length
    path.write_bytes(data)
    with pytest.raises(Damaged):
        opened(tmp_path)
    lines = repaired(tmp_path)
    assert 'topic "long": seqs 1 to 20000 are kept, from a blob' in lines
    assert not findings(tmp_path)
    client = opened(tmp_path)
    assert records_by_topic(client) == before
    assert client.append("long", "next")[0] == 20_001
    client.kill()


def test_no_seq_of_a_streamed_append_without_frame_and_blob_is_assigned_again(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.append("a", 1)
    client.put("long")
    blob = append_streamed(client, "long", *range(60_000))
    client.append("a", 2)
    restarted(client, tmp_path)
    offset, _ = external(tmp_path)
    data = bytearray(log_files(tmp_path)[0].read_bytes())
    data[offset + 8 : offset + 64] = b"?" * 56
    log_files(tmp_path)[0].write_bytes(data)
    kept = blob.read_bytes()[:-1] + b"?"
    blob.write_bytes(kept)
    repaired(tmp_path)
    assert not blob.exists()
    assert blob.with_name(f"{blob.name}.damaged").read_bytes() == kept
    client = opened(tmp_path)
    assert client.append("long", "next")[0] > 60_000
    client.kill()


def test_a_repair_keeps_a_blob_that_no_frame_names_as_a_damaged_file(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.append("other", 0)
    client.put("long")
    blob = append_streamed(client, "long", *range(2_000))
    client.append("other", 2)
    restarted(client, tmp_path)
    topic_offset = frames(tmp_path, FrameKind.TOPIC)[-1][0]
    data = bytearray(log_files(tmp_path)[0].read_bytes())
    data[topic_offset + 8 : external(tmp_path)[0] + 64] = b"?" * (
        external(tmp_path)[0] + 56 - topic_offset
    )
    log_files(tmp_path)[0].write_bytes(data)
    content = blob.read_bytes()
    lines = repaired(tmp_path)
    assert f"{blob}: no frame refers to it; it is kept as .damaged" in lines
    client = opened(tmp_path)
    assert [*seen(client).shown] == ["other"]
    client.kill()
    assert blob.with_name(f"{blob.name}.damaged").read_bytes() == content


BLOB_STATES = ("intact", "flipped", "cut", "missing")


@pytest.mark.parametrize("seed", range(40))
def test_no_acknowledged_seq_is_assigned_again_after_any_damage(tmp_path: Path, seed: int) -> None:
    rng, path = random.Random(seed), tmp_path
    count = rng.choice([1, 40, 12_000])
    client = busy_log(path, count)
    before = records_by_topic(client)
    heads = {name: topic.head_seq for name, topic in client.engine.topics.items()}
    blobs = sorted(client.wal.blobs.added())
    restarted(client, path)
    file = log_files(path)[0]
    data = bytearray(file.read_bytes())
    first = frames(path, FrameKind.APPEND)[0][0]
    last = frames(path, FrameKind.START)[-1][0]  # It states that all earlier frames were synced
    start = rng.randrange(first, last)
    stop = min(start + rng.choice([1, 8, 64, 150, 400]), last)
    data[start:stop] = rng.choice([b"\0", b"?", b"\xff"]) * (stop - start)
    file.write_bytes(data)
    intact = set[int]()
    for (topic_id, first_seq), records in zip(blobs, (count, 3), strict=True):
        blob, blob_state = (
            path / "blob" / "00" / blob_name(topic_id, first_seq),
            rng.choice(BLOB_STATES),
        )
        if blob_state == "flipped":
            flip(blob, rng.randrange(blob.stat().st_size))
        elif blob_state == "cut":
            blob.write_bytes(blob.read_bytes()[:-5])
        elif blob_state == "missing":
            blob.unlink()
        else:
            intact |= {*range(first_seq, first_seq + records)}
    repair = ShardRepair(path, 0, 1, START)
    repair.plan()
    repair.apply()
    assert not findings(path)
    client = opened(path)
    after = records_by_topic(client)
    assert {*after} == {*before}
    for name in after:
        assert client.append(name, "next")[0] > heads[name], name
        assert after[name].items() <= before[name].items()
    assert intact <= {*after["long"]}, "the records of intact blobs remain"
    client.kill()


def test_a_damaged_log_skips_more_seqs_than_any_setting_allows_in_blobs() -> None:
    body_bytes_max, file_bytes_max = 1 << 30, 1 << 30
    records_of_one_write, records_of_others = (
        body_bytes_max // len('{"data":0},'),
        file_bytes_max // 32,
    )
    assert records_of_one_write + records_of_others <= RECORDS_IN_BLOBS
