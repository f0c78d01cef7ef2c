"""Starts of a directory with any kind of damage: a refused start changes no byte, and a successful
start reports every lost record.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, fill
from tests.support.damage import (
    FILE_BYTES,
    WAYS,
    Seen,
    busy,
    flip,
    kinds,
    opened,
    seen,
    seen_once,
    stepped,
    tree,
)
from tests.support.log import failing
from tests.support.recovery import frames_of
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import Damaged
from topics.storage.recovery import shard_recovery

pytestmark = pytest.mark.slow

CASES = 2  # For each kind of damage, kind of file and way to stop


class Scene(NamedTuple):
    path: Path
    before: Seen
    # By topic, the seqs that no frame states to be synced. A torn tail may lose them.
    unsynced: dict[str, set[int]]


@pytest.fixture(scope="module", params=["stop", "kill"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    path = tmp_path_factory.mktemp("damage") / "data"
    with stepped():
        client = busy(path)
        before = seen(client)
        getattr(client, request.param)()
        names = {topic.id: name for name, topic in client.engine.topics.items()}
        last = kinds(path)["wal .wal"][-1]
        headers = [header for _, header in frames_of(last)]
        synced_lsn = max(header.durable_lsn for header in headers)
        unsynced: dict[str, set[int]] = {}
        for header in headers if request.param == "kill" else ():
            if header.lsn >= synced_lsn and header.record_count:
                seqs = range(header.first_seq, header.first_seq + header.record_count)
                unsynced.setdefault(names[header.topic_id], set()).update(seqs)
    assert {"wal .wal", "wal .spare", "segment .seg", "checkpoint .ckpt", "blob .blob"} <= {
        *kinds(path)
    }
    assert len(kinds(path)["checkpoint .ckpt"]) == 2
    (path / "checkpoint" / "00" / "next.reserve").unlink()  # It takes a MiB in each copy
    return Scene(path, before, unsynced)


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped():
        yield


def lost_silently(scene: Scene, after: Seen) -> dict[str, set[int]]:
    found = {}
    for name, records in scene.before.shown.items():
        shown, reported = after.shown.get(name, {}), after.reported.get(name, set())
        lost = {seq for seq in records if seq not in reported and shown.get(seq) != records[seq]}
        if lost:
            found[name] = lost
    return found


def check(scene: Scene, path: Path, kind: str, case: str) -> bool:
    """Start the shard and return whether the start was refused."""
    damaged, files = tree(path), kinds(path).get(kind, [])
    try:
        after = seen_once(path)
    except Damaged as damage:
        refusal = str(damage)
    else:
        refusal = ""
    if refusal:
        assert str(path) in refusal, case
        assert tree(path) == damaged, f"{case}: a refused start changes no file"
        return True
    lost = lost_silently(scene, after)
    if kind == "segment .seg":  # A flipped delete flag, which no checksum covers
        assert sum(map(len, lost.values())) <= len(files), case
    elif kind == "wal .wal":  # The damage looks like a torn tail
        assert all(seqs <= scene.unsynced.get(name, set()) for name, seqs in lost.items()), case
    else:
        assert not lost, case
    return False


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_damaged_directory_is_refused_unchanged_or_started_with_all_losses_reported(
    scene: Scene, tmp_path: Path, way: Callable[[list[Path], random.Random], None]
) -> None:
    refused = []
    for kind in kinds(scene.path):
        for number in range(CASES):
            case = f"{way.__name__} {kind} {number}"
            path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
            way(kinds(path)[kind], random.Random(case))
            refused.append(check(scene, path, kind, case))
            shutil.rmtree(path)
    assert not all(refused)


@pytest.mark.parametrize("files", ["flipped", "missing"])
def test_segments_without_an_intact_checkpoint_are_refused_with_a_message(
    scene: Scene, tmp_path: Path, files: str
) -> None:
    path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
    for checkpoint in kinds(path)["checkpoint .ckpt"]:
        if files == "flipped":
            flip(checkpoint, 100)
        else:
            checkpoint.unlink()
    damaged = tree(path)
    with pytest.raises(
        Damaged, match="no checkpoint is intact, and the log no longer contains all"
    ):
        opened(path)
    assert tree(path) == damaged


def test_a_start_without_space_for_a_folder_changes_no_file(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
    (path / "segment" / "00" / "00000000ff.tmp").write_bytes(b"half")
    spare = kinds(path)["wal .spare"][0]
    spare.rename(spare.with_suffix(".new"))
    damaged = tree(path)
    with monkeypatch.context() as patch:
        patch.setattr(shard_recovery, "make_directory", failing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left"):
            opened(path)
    assert tree(path) == damaged
    assert seen_once(path) == scene.before
    assert tree(path) != damaged


def just_sealed(path: Path) -> tuple[Path, Seen]:
    """Return the files of a shard that was killed between its first segment and its first
    checkpoint.
    """
    client = Sealer(path.with_name("running"), file_bytes=FILE_BYTES)
    fill(client, "a", "b", rounds=20, size=300)
    while not kinds(client.path).get("segment .seg"):
        assert client.step()
    before = seen(client)
    shutil.copytree(client.path, path)
    client.kill()
    assert {"segment .seg", "wal .wal"} <= kinds(path).keys()
    assert not kinds(path).get("checkpoint .ckpt")
    return path, before


def test_a_kill_between_the_first_segment_and_the_first_checkpoint_loses_no_record(
    tmp_path: Path,
) -> None:
    path, before = just_sealed(tmp_path / "data")
    assert seen_once(path) == before
    assert not kinds(path).get("segment .seg"), "segments that no checkpoint names are deleted"


def test_a_segment_proves_that_a_log_without_checkpoints_has_lost_its_end(tmp_path: Path) -> None:
    path, _ = just_sealed(tmp_path / "data")
    first, *later = kinds(path)["wal .wal"]
    for file in later:
        file.unlink()
    data, (_, frame) = first.read_bytes(), frames_of(first)[0]
    first.write_bytes(data[: FILE_HEADER_BYTES + frame.end].ljust(len(data), b"\0"))
    damaged = tree(path)
    with pytest.raises(
        Damaged, match=r"has records of the log up to 0x\w+, but the log ends at 0x"
    ):
        opened(path)
    assert tree(path) == damaged


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_of_a_running_directory_is_refused_unchanged_or_complete(
    tmp_path: Path, seed: int
) -> None:
    """The shard continues to write between the copies of the single files."""
    rng, client, copied = random.Random(seed), busy(tmp_path / "data"), tmp_path / "copy"
    before, folders = seen(client), sorted(client.path.glob("*/00"))
    rng.shuffle(folders)
    for folder in folders:
        (copied / folder.relative_to(client.path)).mkdir(parents=True)
        for path in sorted(folder.iterdir()):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path, copied / path.relative_to(client.path))
            for _ in range(rng.randrange(3)):
                fill(client, "a", "b", rounds=4, size=300)
                client.seal()
    client.kill()
    damaged = tree(copied)
    try:
        after = seen_once(copied)
    except Damaged:
        assert tree(copied) == damaged
    else:
        assert not lost_silently(Scene(copied, before, {}), after)
