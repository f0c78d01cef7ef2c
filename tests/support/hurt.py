"""Data directories of every kind of file, ways to hurt them, and what a start makes of that."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, by_hand, delete, fill, no_syncs
from tests.support.forwarding import RECORDS, forward, forward_named
from tests.support.log import START, Client, append_streamed, log_files
from tests.support.recovery import frames_of
from topics.engine.reading import read
from topics.formats.api.diff_body import Diff, TagMatch
from topics.formats.disk.copies import Run
from topics.formats.disk.frames import FrameHeader, FrameKind
from topics.storage.data_dir import DataDirectory
from topics.storage.recovery.repair import ShardRepair
from topics.storage.verify import Finding, verify_directory

FILE_BYTES = 12 << 10
Tree = dict[str, bytes | None]
Shown = dict[str, dict[int, bytes]]


class Seen(NamedTuple):
    """``shown``: records by topic and seq; ``told``: seqs that readers are told to be lost."""

    shown: Shown
    told: dict[str, set[int]]


@contextlib.contextmanager
def stepped() -> Iterator[None]:
    """Shards are sealed by hand, and nothing is synced."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        no_syncs(patch)
        yield


def busy(path: Path, rounds: int = 6) -> Sealer:
    """A shard that has sealed, deleted, evicted, forwarded and stored long writes; the newest of
    each in the log alone.
    """
    DataDirectory(path, shards=1).close()
    client = Sealer(path, file_bytes=FILE_BYTES)
    for name, config in (("a", {}), ("capped", {"cap_records": 9}), ("q", {"type": "queue"})):
        client.put(name, durability="fsync", **config)
    client.put("long")
    for name in ("dest", "other"):
        client.put(name)
    for _ in range(rounds):
        fill(client, "a", "capped", "q", "b", rounds=4, size=300)
        append_streamed(client, "long", *("y" * 500 for _ in range(9)))
        lsn = forward(client, ["dest", "other"])
        forward_named(client, ["dest"], Run(lsn, 0, 0, len(RECORDS)))
        client.seal()
        delete(client, "a", match=TagMatch("Eq", "odd"))
    fill(client, "a", "b", rounds=3, size=300)
    return client


def small(path: Path, end: str = "stop") -> Seen:
    """Topics of all kinds in one log file."""
    DataDirectory(path, shards=1).close()
    client = Client(path)
    client.put("a", durability="fsync")
    client.put("q", type="queue")
    for number in range(5):
        client.append("a", number, -number, key=f"k{number}")
        client.append("b", f"b{number}")
        client.append("q", number)
    client.delete_records("b", before_seq=3)
    client.put("a", cap_records=100)
    before = seen(client)
    getattr(client, end)()
    if end == "kill":
        Client(path).kill()  # its frame says that all before it was synced
    return before


def frames(path: Path, kind: FrameKind) -> list[tuple[int, FrameHeader]]:
    """``(offset, header)`` of the frames of the first log file that are of this kind."""
    return [found for found in frames_of(log_files(path)[0]) if found[1].kind == kind]


def tree(path: Path) -> Tree:
    """All names and bytes, but those of the lock."""
    return {
        str(found.relative_to(path)): None if found.is_dir() else found.read_bytes()
        for found in sorted(path.rglob("*"))
        if found.name != "LOCK"
    }


def opened(path: Path, **options: Any) -> Client:
    """A start. Raises `Damaged`."""
    return Client(path, file_bytes=FILE_BYTES, **options)


def seen(client: Client) -> Seen:
    """All that readers get."""
    shown: Shown = {}
    told: dict[str, set[int]] = {}
    for name, topic in client.engine.topics.items():
        shown[name], told[name], cursor = {}, set(), 0
        while True:
            asked = Diff(from_seq=cursor, limit=1, include_tags=True, include_meta=True)
            page = read(topic, asked, client.commits.store)
            if page.tombstone is not None:
                lost = range(page.tombstone.gap_from, page.tombstone.gap_to + 1)
                told[name] |= {*lost[:10_000]}
            if page.count:
                record = b"".join(map(bytes, page.pieces))
                shown[name][msgspec.json.decode(record)["$seq"]] = record
            if page.caught_up:
                break
            cursor = page.next_from_seq
    return Seen(shown, told)


def seen_once(path: Path) -> Seen:
    """All that readers get after a start, which is killed then. Raises `Damaged`."""
    client = opened(path)
    try:
        return seen(client)
    finally:
        client.kill()


def repaired(path: Path) -> list[str]:
    """Plan, and do it; what is lost."""
    before = tree(path)
    repair = ShardRepair(path, 0, 1, START)
    repair.plan()
    assert tree(path) == before, "a plan changes nothing"
    assert repair.is_needed
    repair.apply()
    again = ShardRepair(path, 0, 1, START)
    again.plan()
    assert not again.is_needed, "a repair twice is a repair once"
    return repair.lines


def findings(path: Path) -> list[str]:
    """What `verify` finds."""
    return [str(found) for found in verify_directory(path, 1) if isinstance(found, Finding)]


def without(before: Seen, name: str, *lost: int) -> Shown:
    """The records that were shown, but for these."""
    return {
        topic: {seq: data for seq, data in records.items() if topic != name or seq not in lost}
        for topic, records in before.shown.items()
    }


# Ways to hurt. Each gets the files of one kind, and changes some.


def _used(path: Path) -> int:
    return max(len(path.read_bytes().rstrip(b"\0")), 1)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def flipped(files: list[Path], dice: random.Random) -> None:
    """One bit of one file, where there is something."""
    path = dice.choice(files)
    if path.stat().st_size:
        flip(path, dice.randrange(min(_used(path), path.stat().st_size)), dice.randrange(8))


def all_flipped(files: list[Path], dice: random.Random) -> None:
    """One bit of every file."""
    for path in files:
        flipped([path], dice)


def blanked(files: list[Path], dice: random.Random) -> None:
    """A sector of zeros."""
    path = dice.choice(files)
    data = bytearray(path.read_bytes())
    at = dice.randrange(_used(path)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)


def cut(files: list[Path], dice: random.Random) -> None:
    """The end of a file is missing."""
    path = dice.choice(files)
    path.write_bytes(path.read_bytes()[: dice.randrange(_used(path))])


def emptied(files: list[Path], dice: random.Random) -> None:
    """A file without a byte."""
    dice.choice(files).write_bytes(b"")


def missing(files: list[Path], dice: random.Random) -> None:
    """A file is not there."""
    dice.choice(files).unlink()


def all_missing(files: list[Path], _: random.Random) -> None:
    """No file of the kind is there, nor its folder if it held no other."""
    for path in files:
        path.unlink()
    if not [*files[0].parent.iterdir()]:
        files[0].parent.rmdir()


def swapped(files: list[Path], dice: random.Random) -> None:
    """Two files have each other's bytes."""
    one, other = dice.choice(files), dice.choice(files)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def extra(files: list[Path], dice: random.Random) -> None:
    """A file that is there once more, under the name that would follow."""
    path = dice.choice(files)
    stem = path.name.partition(".")[0]
    digits = stem.rpartition("-")[2]
    with contextlib.suppress(ValueError):  # a reserve has no number
        digits = f"{int(digits, 16) + 1:0{len(digits)}x}"
    target = path.with_name(f"{stem[: -len(digits)]}{digits}{path.suffix}")
    if not target.exists():
        shutil.copyfile(path, target)


WAYS: tuple[Callable[[list[Path], random.Random], None], ...] = (
    *(flipped, all_flipped, blanked, cut, emptied, missing, all_missing, swapped, extra),
)


def kinds(path: Path) -> dict[str, list[Path]]:
    """The files, by folder and suffix."""
    found: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in ("LOCK", "meta") and file.parent.name == "00":
            found.setdefault(f"{file.parent.parent.name} {file.suffix}", []).append(file)
    return found
