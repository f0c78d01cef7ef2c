"""The command backup: writes the tar archive that a running server sends, and checks that it is
complete.
"""

from __future__ import annotations

import fcntl
import os
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, cast

import click

from topics.cli import units
from topics.cli.shell import Failed, InvalidInput, Shell, command, pass_shell
from topics.client import Topics
from topics.client.errors import error_of
from topics.client.http import lost

MANIFEST: Final = "manifest.json"  # as in `topics.formats.disk.backup_archive`
BLOCK_BYTES: Final = 1 << 18
RESPONSE_MAX_S: Final = 120.0  # a shard may have to finish its writes before its checkpoint


class CopiedArchive:
    """A reader for a backup stream, for use by `tarfile`. It also writes everything that it reads
    to ``out``.

    It reads at most ``rate`` bytes per second.
    """

    def __init__(self, blocks: Iterator[bytes], out: IO[bytes] | None, rate: int | None) -> None:
        self._blocks, self._out, self._rate = blocks, out, rate
        self._rest = b""
        self._began = time.monotonic()
        self._size = 0

    def tell(self) -> int:
        """Return the number of bytes that were received."""
        return self._size

    def read(self, size: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end."""
        parts = [self._rest]
        left = size - len(self._rest)
        while left > 0 and (block := next(self._blocks, b"")):
            if self._out is not None:
                self._out.write(block)
            self._size += len(block)
            self._pace()
            parts.append(block)
            left -= len(block)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]

    def _pace(self) -> None:
        if self._rate:
            time.sleep(max(0.0, self._began + self._size / self._rate - time.monotonic()))


@command("backup")
@click.argument("file", metavar="FILE")
@click.option(
    "--rate", type=units.BYTES, metavar="BYTES", help="Read at most this number of bytes/s."
)
@pass_shell
def backup(shell: Shell, file: str, rate: int | None) -> None:
    """Copy all data of a running server to a file.

    \b
    topics backup orders.tar
    topics backup - | rclone rcat remote:topics.tar

    The key needs the scope admin and no prefixes. The backup contains all records that were
    acknowledged before it started. The server accepts writes in the meantime. The file is named
    FILE.partial until it is complete, and an existing FILE is not overwritten. topics restore
    creates a data directory from it.
    """
    if file == "-":
        with shell.client() as client:
            size = _copy(shell, client, sys.stdout.buffer, rate)
        sys.stdout.buffer.flush()
    else:
        size = _copy_into(shell, Path(file), rate)
    shell.print_note(f"{file}: {units.size(size)}")


def _copy_into(shell: Shell, file: Path, rate: int | None) -> int:
    if file.exists():
        raise InvalidInput(f"{file} already exists")
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("ab") as out:
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{partial} is being written by another backup") from None
        try:
            partial.chmod(0o600)
            out.truncate(0)
            with shell.client() as client:
                size = _copy(shell, client, out, rate)
            out.flush()
            os.fsync(out.fileno())
            partial.rename(file)
        finally:
            partial.unlink(missing_ok=True)
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return size


def _copy(shell: Shell, client: Topics, out: IO[bytes], rate: int | None) -> int:
    """Write the backup and return its size. Raise `Failed` or `TopicsError`."""
    last = ""
    with requested(client, "GET", out, rate) as copy, _shown(shell) as show:
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", copy), mode="r|") as tar:
                for member in tar:
                    last = member.name
                    show(copy.tell())
        except tarfile.TarError as error:
            raise _broken_off(error) from None
    if last != MANIFEST:
        raise _broken_off("it has no manifest")
    return copy.tell()


@contextmanager
def requested(
    client: Topics, method: str, out: IO[bytes] | None, rate: int | None, **options: Any
) -> Iterator[CopiedArchive]:
    """Request a backup and yield its tar. At the end, read the rest of the response.

    Raise `TopicsError`, or `Failed` if the connection is lost during the response.
    """
    import httpx2

    has_begun = False
    try:
        with client.http.stream(method, "/v0/backup", timeout=RESPONSE_MAX_S, **options) as answer:
            if answer.status_code != 200:
                raise error_of(answer.status_code, answer.headers, answer.read())
            has_begun = True
            copy = CopiedArchive(answer.iter_raw(BLOCK_BYTES), out, rate)
            yield copy
            while copy.read(BLOCK_BYTES):
                pass
    except httpx2.RequestError as error:
        if has_begun:
            raise _broken_off(error) from None
        raise lost(error, client.target) from error


def _broken_off(reason: object) -> Failed:
    return Failed(f"the backup is incomplete: {reason}", "broken_off")


@contextmanager
def _shown(shell: Shell) -> Iterator[Any]:
    """Show on a terminal how many bytes have been received."""
    if not sys.stderr.isatty() or shell.is_quiet or shell.is_json:
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda size: status.update(units.size(size))
