"""Standby: a directory with generations. Each generation is a full backup, and generations share
files.

    DIR/LOCK                          locked by the process that writes; contains its pid
    DIR/standby.json                  `Origin`: the server that is copied
    DIR/generations/000000000017.json `Generation` 17, like the ``manifest.json`` of a backup
    DIR/files/NAME.GENERATION         a backup file, and the generation with which it was received

A new generation needs only the bytes that no file contains (``formats/disk/backup_archive.py``).
Files never change, except that log files grow. A generation contains the first bytes of a log file,
up to the generation's cut. A later generation contains more bytes of the same file.

The manifest is written last, after all files are synced. A killed process therefore leaves complete
earlier generations, and possibly files that no manifest refers to. The next attempt also reports
these files to the server, so it continues the interrupted transfer. Files that neither a manifest
nor the attempt needs are removed after the next manifest is written.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import ge
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import msgspec

from topics.formats.api.backup_body import KnownFile
from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import LOG, ArchiveFile, BadManifest, Manifest, Member
from topics.formats.disk.segment import BadSegment, decode_ends
from topics.storage.backup_restore import NotABackup, read_archive, unexpected
from topics.storage.backup_writer import identity
from topics.storage.disk import Damaged, replace_file, sync_directory

BLOCK_BYTES: Final = 1 << 20
KEEP_DEFAULT: Final = 24


class StandbyInUse(Exception):
    """Another process writes to the directory. ``pid`` is its process ID, or 0 if unknown."""

    def __init__(self, path: Path, pid: int) -> None:
        super().__init__(f"{path} is used by another process" + (f" ({pid})" if pid else ""))
        self.pid = pid


class BadStandby(Exception):
    """The directory is not a standby, or some of its files are damaged or missing."""


class SourceOlder(Exception):
    """The server has older data than the copy, because it was restored or replaced, or has lost its
    data.
    """


class Origin(msgspec.Struct, frozen=True):
    """The server that a standby copies: its address without user info."""

    url: str


class Part(Member, frozen=True, kw_only=True):
    """A file of a generation: the first ``bytes`` of ``file``, which is below ``DIR/files``.

    The other fields are those of a full backup. However, the hash of a segment excludes its delete
    flags, because a promotion changes these flags in ``file``. In `Standby.known`, the hash is
    empty if it is unknown.
    """

    file: str


class LogVolume(NamedTuple):
    """A number of writes to a server's logs, and their size in bytes."""

    writes: int
    bytes: int

    def since(self, earlier: LogVolume) -> LogVolume | None:
        """Return the difference, or None if the server was restarted, which resets the counters."""
        found = LogVolume(self.writes - earlier.writes, self.bytes - earlier.bytes)
        return found if min(found) >= 0 else None


class Generation(Manifest, frozen=True, kw_only=True):
    """The manifest of a full backup, and the names of its files.

    ``requested_ms``, by the clock of this machine, ``received_bytes`` and ``seconds`` describe its
    transfer. ``counters`` contains the server's writes from its startup until shortly before the
    cut, if known.
    """

    number: int
    members: Sequence[Part]
    requested_ms: int
    received_bytes: int
    seconds: float
    counters: LogVolume | None

    @property
    def as_of_ms(self) -> int:
        """The time of the cut: the earlier of ``created_ms`` and ``requested_ms``.

        The two times are from the clocks of different machines.
        """
        return min(self.created_ms, self.requested_ms)


class Standby:
    """A standby directory. To write to it, hold `lock`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files, self.generations = path / "files", path / "generations"
        # Hashes of log files up to a length, so that only the new bytes are read if a file has
        # grown.
        self._hashes: dict[str, tuple[int, Any]] = {}
        self._named: dict[int, frozenset[str]] = {}  # the files of each generation

    # The directory

    def create(self, origin: Origin) -> None:
        """Create the directory for a server, or check that it is a standby of this server.

        Raise `BadStandby` or OSError.
        """
        # A directory belongs to one server. Mixing two would produce generations that no server
        # ever had.
        found = self.origin() if (self.path / "standby.json").exists() else None
        if found is not None and found != origin:
            raise BadStandby(f"{self.path} is a standby of {found.url}, not of {origin.url}")
        # An attempt that was killed or ran out of disk space may have left these names. A new file
        # system has the folder lost+found.
        own = {"files", "generations", "standby.json.new", "lost+found"}
        names = {each.name for each in self.path.iterdir()} if self.path.is_dir() else set[str]()
        if found is None and (names - own or self.numbers()):
            raise BadStandby(f"{self.path} is neither empty nor a standby")
        for folder in (self.path, self.files, self.generations):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        sync_directory(self.path.absolute().parent)
        # This file is written last. A directory without it is not a standby, and `create` can be
        # repeated.
        if found is None:
            replace_file(self.path / "standby.json", msgspec.json.encode(origin))

    def origin(self) -> Origin:
        """Return the server that is copied. Raise `BadStandby`."""
        try:
            return msgspec.json.decode((self.path / "standby.json").read_bytes(), type=Origin)
        except (OSError, msgspec.MsgspecError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise BadStandby(f"{self.path} is not a standby (standby.json: {reason})") from error

    def lock(self) -> IO[str]:
        """Lock the directory for this process, until the returned file is closed.

        The kernel closes the file when the process ends in any way. Raise `StandbyInUse` or
        OSError.
        """
        # Open without truncating, because another process may hold the lock and its pid must
        # be readable.
        file = os.fdopen(os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            text = file.read().strip()
            file.close()
            raise StandbyInUse(self.path, int(text) if text.isdigit() else 0) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return file

    def numbers(self) -> list[int]:
        """Return the numbers of all generations, the oldest first."""
        names = (path.stem for path in self.generations.glob("*.json"))
        return sorted(int(name) for name in names if name.isdigit())

    def generation(self, number: int) -> Generation:
        """Read a generation. Raise `BadStandby`."""
        path = self._manifest(number)
        try:
            return backup_archive.unsealed(path.read_bytes(), Generation)
        except FileNotFoundError:
            held = ", ".join(map(str, self.numbers())) or "none"
            raise BadStandby(f"{self.path} has no generation {number}; it has: {held}") from None
        except BadManifest as error:
            raise BadStandby(f"{path}: {error}") from error

    def newest(self) -> Generation | None:
        """Return the newest generation with an intact manifest, or None.

        If a manifest is damaged, only its own generation is lost.
        """
        for number in reversed(self.numbers()):
            with contextlib.suppress(BadStandby, OSError):
                return self.generation(number)
        return None

    def intact(self) -> list[Generation]:
        """Return all generations with an intact manifest, the oldest first."""
        found = []
        for number in self.numbers():
            with contextlib.suppress(BadStandby, OSError):
                found.append(self.generation(number))
        return found

    def damaged(self, generation: Generation) -> list[str]:
        """Read all files of a generation. Return the files that are altered or cannot be read."""
        found = []
        for part in generation.members:
            self._hashes.pop(part.file, None)
            try:
                is_damaged = self._hash(part.file, part.bytes) != part.sha256
            except OSError:
                is_damaged = True
            if is_damaged:
                found.append(part.file)
        return found

    def _next_number(self) -> int:
        return max(self.numbers(), default=0) + 1

    def _manifest(self, number: int) -> Path:
        return self.generations / f"{number:012d}.json"

    # The next generation

    def known(self) -> tuple[dict[str, Part], list[KnownFile]]:
        """Return the files that this directory has for the next generation, by path, and the list
        of these files that is sent to the server.

        Truncated and unreadable files, and altered log files, are omitted, so that the server sends
        them again.
        """
        # The files of the newest generation are known completely, with their hashes.
        newest = self.newest()
        runs = newest.runs if newest else []
        parts = {part.path: part for part in newest.members} if newest else {}
        # Complete files from an interrupted transfer are newer than the files of the generation.
        suffix = f".{self._next_number()}"
        for file in self.files.rglob(f"*{suffix}"):
            name = str(file.relative_to(self.files))
            # A log file may have been extended incompletely, and its length does not show this, so
            # it is sent again.
            if not name.startswith(LOG):
                path, size = name.removesuffix(suffix), file.stat().st_size
                parts[path] = Part(path, size, size, "", file=name)
        known, files = {}, []
        for path, part in parts.items():
            source = ArchiveFile(path, str(self.files / part.file), 0, part.bytes, part.bytes)
            # The server compares identities and lengths, and sends only files that differ or are
            # new.
            with contextlib.suppress(OSError, Damaged):
                own = identity(source, part.bytes, runs)
                # A longer log file gets a new hash, which must not include damage.
                if not path.startswith(LOG) or self._hash(part.file, part.bytes) == part.sha256:
                    known[path] = part
                    files.append(KnownFile(path, part.bytes, own))
        return known, files

    def receive(
        self,
        data: IO[bytes],
        known: Mapping[str, Part],
        counters: LogVolume | None,
        *,
        requested_ms: int,
        accepts_older: bool = False,
    ) -> Generation:
        """Store the files of an incremental backup, and then its generation.

        ``data`` is the tar. ``known`` contains the files that were reported (`known`).
        ``requested_ms`` is the time of the request.

        Raise `NotABackup`, `SourceOlder` unless ``accepts_older``, OSError, or the errors of
        ``data``.
        """
        # The number of the generation is part of each file name, so a failed attempt overwrites
        # nothing.
        number = self._next_number()
        received: dict[str, tuple[str, str]] = {}  # file and hash of the sent bytes, by path

        def store(info: tarfile.TarInfo, content: IO[bytes]) -> None:
            # ``PATH@OFFSET`` continues a known file. A plain name is a new file.
            path, _, kept = info.name.partition("@")
            is_valid = not kept or (
                path.startswith(LOG) and path in known and kept == str(known[path].bytes)
            )
            if not backup_archive.NAME.fullmatch(path) or not is_valid:
                raise unexpected(info)
            file = known[path].file if kept else f"{path}.{number}"
            received[path] = file, self._store(content, file, int(kept or 0))

        manifest = read_archive(data, store)
        if not accepts_older:
            self._check_age(manifest)
        parts = [self._part(member, known, received) for member in manifest.members]
        # Names must be durable before the manifest that relies on them.
        for folder, _, _ in os.walk(self.files):
            sync_directory(Path(folder))
        generation = Generation(
            **msgspec.structs.asdict(manifest) | {"members": parts},
            number=number,
            requested_ms=requested_ms,
            received_bytes=data.tell(),
            seconds=max(0.0, time.time() - requested_ms / 1000),
            counters=counters,
        )
        replace_file(self._manifest(number), backup_archive.sealed(generation))
        return generation

    def _check_age(self, manifest: Manifest) -> None:
        """Raise `SourceOlder` if a log of the server ends before the newest generation.

        Otherwise the next rounds would replace the last copy of the data with this older data. A
        server crash cannot be the cause, because a log is synced up to its cut.
        """
        newest = self.newest()
        if newest is None:
            return
        has_same_shards = manifest.shards == newest.shards
        if has_same_shards and all(map(ge, manifest.cuts, newest.cuts)):
            return
        raise SourceOlder(
            f"the server has older data than generation {newest.number}, as after a restore or the"
            " loss of its data; promote the copy, use another directory, or continue with"
            " --accept-older"
        )

    def _store(self, content: IO[bytes], name: str, offset: int) -> str:
        """Write the received bytes to a file from ``offset`` on, durably. Return their SHA-256.

        A new file gets its name when it is complete.
        """
        path = self.files / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # A continued file is written in place, which is harmless: earlier generations use only
        # its beginning.
        target = path if offset else path.with_name(path.name + ".part")
        if not offset:
            self._hashes.pop(name, None)  # an aborted attempt may have left different bytes
        digest = hashlib.sha256()
        with target.open("r+b" if offset else "wb") as file:
            target.chmod(0o600)
            file.seek(offset)
            while block := content.read(BLOCK_BYTES):
                digest.update(block)
                file.write(block)
            # The file must be durable before the manifest.
            file.flush()
            os.fsync(file.fileno())
        if not offset:
            target.replace(path)
        return digest.hexdigest()

    def _part(
        self,
        member: Member,
        known: Mapping[str, Part],
        received: Mapping[str, tuple[str, str]],
    ) -> Part:
        """Return the `Part` for a member, after checking that all of its bytes are present."""
        path, size = member.path, member.bytes
        if path in received:
            file, sent = received[path]
            # Compare the bytes that were sent before they are combined with earlier ones.
            if sent != member.sha256:
                raise NotABackup(f"{path} was altered in transit")
            digest = ""
        elif path in known and known[path].bytes == size:
            file, digest = known[path].file, known[path].sha256
        else:
            raise NotABackup(f"{path} is missing from it")
        return Part(path, size, member.size, digest or self._hash(file, size), file=file)

    def _hash(self, file: str, size: int) -> str:
        """Return the SHA-256 of the first bytes of a file, as in `Part`."""
        at, digest = self._hashes.get(file, (0, hashlib.sha256()))
        # The stored hash covers more bytes than requested, so hash the file from its beginning.
        if at > size:
            at, digest = 0, hashlib.sha256()
        with (self.files / file).open("rb") as source:
            source.seek(at)
            for block, is_hashed in _blocks(source, file, at, size):
                if is_hashed:
                    digest.update(block)
        # Only log files get longer. All other files are hashed once.
        if file.startswith(LOG):
            self._hashes[file] = size, digest
        return str(digest.hexdigest())

    # Retention

    def prune(self, keep: int) -> None:
        """Remove all but the newest ``keep`` generations, and the files that only removed
        generations use.
        """
        numbers = self.numbers()
        # Remove the manifests first. If the process is killed in between, the next call removes
        # the files that no manifest names.
        for number in numbers[:-keep]:
            self._manifest(number).unlink()
        sync_directory(self.generations)
        # Read only manifests that have not been read yet.
        try:
            self._named = {number: self._files_of(number) for number in numbers[-keep:]}
        except OSError:
            # The generation may be usable again after a temporary read error, so remove no files.
            # `topics standby status` reports the manifest as damaged.
            return
        named = frozenset[str]().union(*self._named.values())
        for folder, _, names in os.walk(self.files):
            for path in (Path(folder, name) for name in names):
                if str(path.relative_to(self.files)) not in named:
                    path.unlink()
        self._hashes = {file: held for file, held in self._hashes.items() if file in named}

    def _files_of(self, number: int) -> frozenset[str]:
        """Return the files of a generation. It has none if its manifest is damaged."""
        if number in self._named:
            return self._named[number]
        try:
            return frozenset(part.file for part in self.generation(number).members)
        except BadStandby:
            return frozenset()  # the generation cannot be restored anyway

    # Restore

    def unpack(self, generation: Generation, folder: Path, *, link: bool) -> Manifest:
        """Write the files of a generation below ``folder``, or make hard links to them.

        Only segments and blobs get hard links. If the file system does not support hard links, all
        files are copied. The hashes of copies are checked. Raise `BadStandby` or OSError.
        """
        for part in generation.members:
            if not backup_archive.NAME.fullmatch(part.path) or not _is_of(part.path, part.file):
                raise BadStandby(f"generation {generation.number} has an invalid file {part.file}")
            source, target = self.files / part.file, folder / part.path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # A hard link shares its bytes with the generation, even if the promotion fails. So only
            # files that a promotion does not change, apart from delete flags, are linked.
            is_linked = link and part.path.startswith(("segment/", "blob/"))
            if not (is_linked and _linked(source, target)):
                self._copy(part, source, target)
            if target.stat().st_size != part.bytes:
                raise BadStandby(f"{source} is cut or was altered")
        return generation

    def _copy(self, part: Part, source: Path, target: Path) -> None:
        """Copy the bytes of a part, and check its hash. Raise `BadStandby` or OSError."""
        digest, size = hashlib.sha256(), 0
        try:
            with source.open("rb") as reader, target.open("xb") as writer:
                target.chmod(0o600)
                for block, is_hashed in _blocks(reader, part.path, 0, part.bytes):
                    if is_hashed:
                        digest.update(block)
                    size += writer.write(block)
        except FileNotFoundError as error:
            raise BadStandby(f"{error.filename} is missing") from error
        if (size, digest.hexdigest()) != (part.bytes, part.sha256):
            raise BadStandby(f"{source} is cut or was altered")


def _linked(source: Path, target: Path) -> bool:
    """Make a hard link. Return False if the file system does not support hard links."""
    try:
        target.hardlink_to(source)
    except FileNotFoundError as error:
        raise BadStandby(f"{source} is missing") from error
    except OSError:
        return False
    return True


def _is_of(path: str, file: str) -> bool:
    """Return whether ``file`` is the name of a stored file for this path."""
    name, _, number = file.rpartition(".")
    return name == path and number.isdigit()


def _blocks(source: IO[bytes], name: str, at: int, size: int) -> Iterator[tuple[bytes, bool]]:
    """Yield the blocks of a file from the current position ``at`` up to ``size`` or the end of the
    file, each with whether the hash of a `Part` covers it.
    """
    flags = _flags(source, size) if name.startswith("segment/") else range(0)
    for stop, is_hashed in ((flags.start, True), (flags.stop, False), (size, True)):
        while at < stop and (block := source.read(min(BLOCK_BYTES, stop - at))):
            yield block, is_hashed
            at += len(block)


def _flags(source: IO[bytes], size: int) -> range:
    """Return the offsets of a segment's delete flags, or an empty range if it is damaged."""
    try:
        _, trailer, _ = decode_ends(lambda at, length: os.pread(source.fileno(), length, at), size)
    except BadSegment:
        return range(0)
    return range(trailer.flags_at, trailer.flags_at + trailer.record_count)
