"""Data directories with every kind of file, kinds of damage, and the state after a start."""

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
    """The state that readers see. ``shown``: records by topic and seq. ``reported``: seqs that are
    reported as lost.
    """

    shown: Shown
    reported: dict[str, set[int]]


@contextlib.contextmanager
def stepped() -> Iterator[None]:
    """Seal only on request and sync nothing."""
    with pytest.MonkeyPatch.context() as patch:
        by_hand(patch)
        no_syncs(patch)
        yield


def busy(path: Path, rounds: int = 6) -> Sealer:
    """Return a shard that has sealed, deleted, evicted, forwarded and stored long writes. The
    newest of each are only in the log.
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
    """Create topics of all kinds in one log file."""
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
        Client(path).kill()  # Its START frame states that all earlier frames were synced
    return before


def frames(path: Path, kind: FrameKind) -> list[tuple[int, FrameHeader]]:
    """Return ``(offset, header)`` of the frames of this kind in the first log file."""
    return [found for found in frames_of(log_files(path)[0]) if found[1].kind == kind]


def tree(path: Path) -> Tree:
    """Return all names and contents except those of the lock."""
    return {
        str(found.relative_to(path)): None if found.is_dir() else found.read_bytes()
        for found in sorted(path.rglob("*"))
        if found.name != "LOCK"
    }


def opened(path: Path, **options: Any) -> Client:
    """Start the shard. Raise `Damaged` if the start is refused."""
    return Client(path, file_bytes=FILE_BYTES, **options)


def seen(client: Client) -> Seen:
    """Return everything that readers see."""
    shown: Shown = {}
    reported: dict[str, set[int]] = {}
    for name, topic in client.engine.topics.items():
        shown[name], reported[name], cursor = {}, set(), 0
        while True:
            query = Diff(from_seq=cursor, limit=1, include_tags=True, include_meta=True)
            page = read(topic, query, client.commits.store)
            if page.tombstone is not None:
                lost = range(page.tombstone.gap_from, page.tombstone.gap_to + 1)
                reported[name] |= {*lost[:10_000]}
            if page.count:
                record = b"".join(map(bytes, page.chunks))
                shown[name][msgspec.json.decode(record)["$seq"]] = record
            if page.caught_up:
                break
            cursor = page.next_from_seq
    return Seen(shown, reported)


def seen_once(path: Path) -> Seen:
    """Start the shard, return everything that readers see, and kill it. Raise `Damaged` if the
    start is refused.
    """
    client = opened(path)
    try:
        return seen(client)
    finally:
        client.kill()


def repaired(path: Path) -> list[str]:
    """Plan and apply a repair, and return its report."""
    before = tree(path)
    repair = ShardRepair(path, 0, 1, START)
    repair.plan()
    assert tree(path) == before, "a plan changes nothing"
    assert repair.is_needed
    repair.apply()
    again = ShardRepair(path, 0, 1, START)
    again.plan()
    assert not again.is_needed, "a second repair changes nothing"
    return repair.lines


def findings(path: Path) -> list[str]:
    """Return the findings of `verify`."""
    return [str(found) for found in verify_directory(path, 1) if isinstance(found, Finding)]


def without(before: Seen, name: str, *lost: int) -> Shown:
    """Return the records that were shown, except these records of topic ``name``."""
    return {
        topic: {seq: data for seq, data in records.items() if topic != name or seq not in lost}
        for topic, records in before.shown.items()
    }


# Kinds of damage. Each function receives the files of one kind and changes some of them.


def _used(path: Path) -> int:
    return max(len(path.read_bytes().rstrip(b"\0")), 1)


def flip(path: Path, offset: int, bit: int = 0) -> None:
    """Flip one bit."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def flipped(files: list[Path], rng: random.Random) -> None:
    """Flip one bit in the used part of one file."""
    path = rng.choice(files)
    if path.stat().st_size:
        flip(path, rng.randrange(min(_used(path), path.stat().st_size)), rng.randrange(8))


def all_flipped(files: list[Path], rng: random.Random) -> None:
    """Flip one bit of every file."""
    for path in files:
        flipped([path], rng)


def blanked(files: list[Path], rng: random.Random) -> None:
    """Overwrite a sector with zeros."""
    path = rng.choice(files)
    data = bytearray(path.read_bytes())
    at = rng.randrange(_used(path)) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    path.write_bytes(data)


def cut(files: list[Path], rng: random.Random) -> None:
    """Cut the end of a file."""
    path = rng.choice(files)
    path.write_bytes(path.read_bytes()[: rng.randrange(_used(path))])


def emptied(files: list[Path], rng: random.Random) -> None:
    """Empty a file."""
    rng.choice(files).write_bytes(b"")


def missing(files: list[Path], rng: random.Random) -> None:
    """Remove a file."""
    rng.choice(files).unlink()


def all_missing(files: list[Path], _: random.Random) -> None:
    """Remove all files of the kind, and their folder if it is empty then."""
    for path in files:
        path.unlink()
    if not [*files[0].parent.iterdir()]:
        files[0].parent.rmdir()


def swapped(files: list[Path], rng: random.Random) -> None:
    """Swap the contents of two files."""
    one, other = rng.choice(files), rng.choice(files)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


def extra(files: list[Path], rng: random.Random) -> None:
    """Copy a file to the name that would follow."""
    path = rng.choice(files)
    stem = path.name.partition(".")[0]
    digits = stem.rpartition("-")[2]
    with contextlib.suppress(ValueError):  # A reserve has no number
        digits = f"{int(digits, 16) + 1:0{len(digits)}x}"
    target = path.with_name(f"{stem[: -len(digits)]}{digits}{path.suffix}")
    if not target.exists():
        shutil.copyfile(path, target)


WAYS: tuple[Callable[[list[Path], random.Random], None], ...] = (
    *(flipped, all_flipped, blanked, cut, emptied, missing, all_missing, swapped, extra),
)


def kinds(path: Path) -> dict[str, list[Path]]:
    """Return the files by folder and suffix."""
    found: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in ("LOCK", "meta") and file.parent.name == "00":
            found.setdefault(f"{file.parent.parent.name} {file.suffix}", []).append(file)
    return found
