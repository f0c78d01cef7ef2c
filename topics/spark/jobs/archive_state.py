"""State of an archive: what its folder belongs to, what its last batch did, and what is unfinished.

    DIR/date=2026-11-23/batch-0000000012-00000.parquet    records; names tell the batch
    DIR/date=2026-11-22/merged-0000000012-00000.parquet   the files of a date, merged after batch 12
    DIR/_checkpoint/                   Spark's: the offsets of each batch
    DIR/_staging/                      files that are being written
    DIR/_state/archive.json            `Identity`
    DIR/_state/batch-0000000012.json   `Manifest` of the last batch, and of the one before
    DIR/_state/merge.json              `Merge` that is to be finished

A batch is written to the staging folder, then its manifest is written: from there on it counts.
Then its files are renamed into place. So a crash before the manifest leaves nothing that counts,
and a crash after it leaves renames, which the next run does. A batch that Spark repeats because its
own commit was lost is known by its number. Merges go the same way. Nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from topics.spark.errors import JobError
from topics.spark.jobs.files import LOCK, PENDING, Files

VERSION = 1
STATE, STAGING, CHECKPOINT = "_state", "_staging", "_checkpoint"
_IDENTITY, _MERGE = f"{STATE}/archive.json", f"{STATE}/merge.json"
MANIFESTS_KEPT = 2
AGAIN = "archive into a new folder"


class Figure(NamedTuple):
    """Records of one topic of one server (``partition``): how many, the first and last seq."""

    partition: int
    topic: str
    rows: int
    first: int
    last: int


class Identity(msgspec.Struct, frozen=True):
    """What an archive belongs to. ``subscribe`` is a topic, or a pattern if ``is_pattern``."""

    servers: list[str]  # their names
    subscribe: str
    is_pattern: bool
    format: str
    version: int = VERSION


class Manifest(msgspec.Struct, frozen=True):
    """A batch: the query that made it, the renames that finish it, its figures, and the sums of all
    batches up to it.
    """

    batch: int
    query: str
    moves: list[tuple[str, str]]
    figures: list[Figure]
    totals: list[Figure]


class Merge(msgspec.Struct, frozen=True):
    """A date folder whose files were merged: the folder ``staged`` takes its place. ``marker`` is a
    name that only the merged folder has.
    """

    folder: str
    staged: str
    marker: str


def add_figures(figures: Iterable[Figure]) -> list[Figure]:
    """One figure for each server and topic, sorted."""
    sums: dict[tuple[int, str], Figure] = {}
    for each in figures:
        known = sums.get((each.partition, each.topic), each._replace(rows=0))
        sums[each.partition, each.topic] = Figure(
            each.partition,
            each.topic,
            known.rows + each.rows,
            min(known.first, each.first),
            max(known.last, each.last),
        )
    return [sums[key] for key in sorted(sums)]


class State:
    """The state of the archive in ``files``."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def check_folder(self, identity: Identity) -> None:
        """Raise `JobError` unless the folder is this archive, or empty."""
        files, where = self._files, self._files.uri("")
        if not files.exists(_IDENTITY):
            strangers = [name for name in files.names("") if name not in (LOCK, STATE)]
            if strangers:
                raise JobError(
                    f"{where}: the folder is not empty ({strangers[0]}) and holds no archive;"
                    f" {AGAIN}"
                )
            return
        found = msgspec.json.decode(files.read(_IDENTITY), type=Identity)
        if found != identity:
            raise JobError(
                f"{where}: the folder is the archive of {_told(found)}, not of {_told(identity)};"
                f" {AGAIN}"
            )

    def claim(self, identity: Identity) -> None:
        """Make an empty folder this archive. The folder is checked and locked."""
        if not self._files.exists(_IDENTITY):
            self._files.write(_IDENTITY, msgspec.json.encode(identity).decode())

    def check_checkpoint(self) -> None:
        """Raise `JobError` when the checkpoint is not the one that the files were written by."""
        files, last = self._files, self.last()
        where = files.uri(CHECKPOINT)
        metadata = f"{CHECKPOINT}/metadata"
        if not files.exists(metadata):
            if last is None:
                return
            raise JobError(
                f"{where}: the checkpoint is gone, and without it every record would be written"
                f" again; restore it, or {AGAIN}"
            )
        query = msgspec.json.decode(files.read(metadata))["id"]
        begun = any(name.isdigit() for name in files.names(f"{CHECKPOINT}/commits"))
        if (last is None and begun) or (last is not None and last.query != query):
            raise JobError(
                f"{where}: the checkpoint is not of the files in this folder; restore the one that"
                f" is, or {AGAIN}"
            )

    def last(self) -> Manifest | None:
        """The manifest of the last batch."""
        names = self._manifests()
        if not names:
            return None
        text = self._files.read(f"{STATE}/{names[-1]}")
        return msgspec.json.decode(text, type=Manifest)

    def commit(self, manifest: Manifest) -> None:
        """Let a staged batch count, and finish it."""
        files = self._files
        files.settle([source for source, _ in manifest.moves])
        name = f"{STATE}/batch-{manifest.batch:010d}.json"
        files.write(name, msgspec.json.encode(manifest).decode())
        self._finish_batch(manifest)
        self._forget_old()

    def commit_merge(self, merge: Merge) -> None:
        """Let a merged folder count, and finish it."""
        files = self._files
        names = files.names(merge.staged)
        assert merge.marker in names, "the merged folder has its marker"
        files.settle([*(f"{merge.staged}/{name}" for name in names), merge.staged])
        files.write(_MERGE, msgspec.json.encode(merge).decode())
        self._finish_merge(merge)

    def recover(self) -> None:
        """Finish what a crash left, and clear the staging folder."""
        if (last := self.last()) is not None:
            self._finish_batch(last)
        if self._files.exists(_MERGE):
            text = self._files.read(_MERGE)
            self._finish_merge(msgspec.json.decode(text, type=Merge))
        self._files.remove(STAGING)
        for name in self._files.names(STATE):
            if name.endswith(PENDING):
                self._files.remove(f"{STATE}/{name}")
        self._forget_old()

    def _finish_batch(self, manifest: Manifest) -> None:
        """Rename what is still staged. The staging folder goes last, so its absence means done."""
        files = self._files
        if not files.exists(staging(manifest.batch)):
            return
        for source, dest in manifest.moves:
            if files.exists(source):
                files.move(source, dest)
            elif not files.exists(dest):
                raise JobError(f"{files.uri(dest)}: the file is gone, and so is its staged copy")
        folders = {dest.rpartition("/")[0] for _, dest in manifest.moves}
        files.settle(["", *sorted(folders)] if folders else [])
        files.remove(staging(manifest.batch))

    def _finish_merge(self, merge: Merge) -> None:
        files = self._files
        if not files.exists(f"{merge.folder}/{merge.marker}"):
            files.swap(merge.staged, merge.folder, f"{STAGING}/aside")
        files.remove(STAGING)
        files.remove(_MERGE)

    def _forget_old(self) -> None:
        for old in self._manifests()[:-MANIFESTS_KEPT]:
            self._files.remove(f"{STATE}/{old}")

    def _manifests(self) -> list[str]:
        names = self._files.names(STATE)
        return [name for name in names if name.startswith("batch-") and name.endswith(".json")]


def staging(batch: int) -> str:
    """Where a batch is written first."""
    return f"{STAGING}/batch-{batch:010d}"


def _told(identity: Identity) -> str:
    what = "pattern" if identity.is_pattern else "topic"
    servers = ", ".join(identity.servers)
    return f'{what} "{identity.subscribe}" of {servers} ({identity.format}, {identity.version})'
