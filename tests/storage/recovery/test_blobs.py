"""Blobs of streamed appends at a start: damage is reported with the path, intact blobs are not
read twice, and the start reports progress.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.log import START, Client, append_streamed
from topics.engine.changes import start as process_start
from topics.storage.disk import Damaged
from topics.storage.recovery import shard_recovery as recovery_steps
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal import blobs
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log_file import WalFile

pytestmark = pytest.mark.slow

RECORDS = [{"data": "x" * 100, "tag": f"t{number % 3}", "node": "n"} for number in range(40)]


def make(
    path: Path,
    records: list[dict[str, Any]],
    *,
    orderly: bool,
    follow: Callable[[Client], object] = lambda _: None,
) -> Path:
    """Create a directory with one blob and return the path of the blob."""
    client = Client(path)
    client.put("a")
    client.append("a", "before")
    blob = append_streamed(client, "a", records=records)
    follow(client)
    (client.stop if orderly else client.kill)()
    return blob


def start(path: Path, report: Callable[[float], None] = lambda _: None) -> None:
    recover(
        path, 0, 1, START, wal_file_bytes=1 << 20, wal_sync_ms=200, boot="first", report=report
    ).wal.stop()


FOLLOWED: dict[str, Callable[[Client], object]] = {
    "nothing": lambda _: None,
    "a cap": lambda client: client.put("a", cap_records=7),
    "a delete of the first": lambda client: client.delete_records("a", before_seq=20),
    "a delete of a tag": lambda client: client.delete_records("a", match="t1"),
}
Damage = Callable[[bytes], bytes | None]


def flipped(at: int) -> Damage:
    """Return a function that flips one bit of this byte."""
    return lambda data: data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]


def cut(length: int) -> Damage:
    """Return a function that keeps only the first bytes."""
    return lambda data: data[:length]


DAMAGES: dict[str, Damage] = {
    **{f"byte {at}": flipped(at) for at in (0, 8, 12, 16, 24, 32, 39, 63)},
    **{f"byte {at}": flipped(at) for at in (64, 70, 100, 300, 600, -2)},
    **{f"cut to {length}": cut(length) for length in (0, 1, 63, 64, 65, 100, 400, -1)},
    "one additional byte": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    "missing": lambda _: None,
}


@pytest.mark.parametrize("orderly", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("records", [RECORDS, [{"data": "x" * 100}] * 40], ids=["tagged", "plain"])
def test_any_damage_of_a_blob_is_reported_with_its_path(
    tmp_path: Path, records: list[dict[str, Any]], orderly: bool
) -> None:
    """Damage is reported at the start, or at the first read if the start follows an
    orderly stop.
    """
    for number, follow in enumerate(FOLLOWED.values()):
        path = tmp_path / f"{number}"
        blob = make(path, records, orderly=orderly, follow=follow)
        intact = blob.read_bytes()
        for name, damaged in DAMAGES.items():
            data = damaged(intact)
            blob.unlink(missing_ok=True)
            if data is not None:
                blob.write_bytes(data)
            with pytest.raises(Damaged) as damage:
                _start_and_read(path)
            assert damage.value.path == blob, name
        blob.write_bytes(intact)
        _start_and_read(path)


def _start_and_read(path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        opened: list[WalFile] = []
        real = WalFile.open

        def recording(path: Path, shard: int, **options: Any) -> WalFile:
            opened.append(real(path, shard, **options))
            return opened[-1]

        patch.setattr(WalFile, "open", recording)
        try:
            client = Client(path)
            try:
                for blob_id in client.wal.blobs.added():
                    client.wal.blobs.file(*blob_id)
            finally:
                client.kill()
        finally:
            # In production a refused start ends the process, which closes its files
            for file in opened:
                file.close()


def test_a_blob_is_not_read_at_a_start_after_an_orderly_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = BlobStore._crc_of_rest

    def counting(store: BlobStore, *arguments: Any) -> int:
        read.append(1)
        return real(store, *arguments)

    monkeypatch.setattr(BlobStore, "_crc_of_rest", counting)
    make(tmp_path / "data", [{"data": "x"}] * 40, orderly=True)
    client = Client(tmp_path / "data")
    assert read == [], "after an orderly stop, the start checks only the header"
    for _ in range(2):
        assert client.read("a").count == 41
    assert len(read) == 1, "the first read checks the complete blob"
    client.kill()
    Client(tmp_path / "data").kill()
    assert len(read) == 2, "after a kill, the start checks the complete blob"


def test_a_start_reports_progress_in_each_of_its_long_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "data", RECORDS * 20, orderly=False)
    monkeypatch.setattr(blobs, "CHUNK_BYTES", 1000)
    steps: list[str] = []
    for where, step in (
        (recovery_steps.ShardReader, "open_log"),
        (recovery_steps, "restore_topics"),
        (BlobStore, "_crc_of_rest"),
        (BlobStore, "sweep"),
        (process_start, "decide"),
    ):
        monkeypatch.setattr(where, step, _recording(steps, step, getattr(where, step)))
    monkeypatch.setattr("topics.storage.start_progress.ITEMS", 1)
    reported: list[float] = []

    def report(share: float) -> None:
        reported.append(share)
        steps.append("progress")

    start(tmp_path / "data", report)
    assert reported == sorted(reported)
    assert reported[-1] == 1.0
    assert _after(steps, "_crc_of_rest") > 100, "a blob of 100,000 bytes is read in chunks of 1,000"
    assert _after(steps, "sweep")


def _recording(steps: list[str], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        steps.append(name)
        return real(*arguments, **options)

    return call


def _after(steps: list[str], name: str) -> int:
    """Return the number of progress reports between this step and the next."""
    rest = steps[steps.index(name) + 1 :]
    return next((count for count, step in enumerate(rest) if step != "progress"), len(rest))
