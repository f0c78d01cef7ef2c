"""API keys: how the supervisor reads them, reloads them and publishes them to the front.

    TOPICS_API_KEYS         removed from the environment at startup; these keys never change
    TOPICS_API_KEYS_FILE    read at startup and after each SIGHUP
    systemd's credential    `topics.api-keys`, read in the same way if the file exists at startup

In a key file, keys are separated by line ends or commas. Lines that start with ``#`` are comments.
A secret is overwritten in memory as soon as it is hashed. This module must never copy any part of a
secret, and no error message may contain one.

                  files stay as they are for SETTLE_S
    idle ──SIGHUP──▶ settling ────────────────────────▶ read ──valid──▶ published, logged
                      ▲    │ files change, for at          └─invalid──▶ logged and counted; the
                      └────┘ most RELOAD_TIMEOUT_S                      earlier keys stay valid

An operator may send the signal while an editor is still writing the file. An incomplete file can be
valid although the scopes of its last entry are missing. So the files are read only after they have
not changed for SETTLE_S. A SIGHUP that arrives during a reload does not start another reload.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import stat
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from topics.actors.link.board import Board
from topics.actors.link.key_table import KeyTable
from topics.config import API_KEYS
from topics.engine.access import Access, Principal, Scope

CREDENTIAL = "topics.api-keys"
KEY_FILE_MAX_BYTES = 1024 * 1024
SETTLE_S: Final = 0.25
RELOAD_TIMEOUT_S: Final = 5.0
_ANYTHING = re.compile(rb"[^,\s]")
_NO_KEY = re.compile(rb"^[ \t]*#.*$|[\r\n]+", re.MULTILINE)  # in a key file: comments and line ends
_LINE_ENDS = bytes.maketrans(b"\r", b",")

log = structlog.get_logger()

FileState = tuple[int, ...]
"""Attributes of a file that change with its content. Empty if the file does not exist."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file. ``variable`` is the setting that contains its path, for error messages."""

    path: Path
    variable: str

    def read(self, *, again: bool = False) -> Access:
        """Read the file and return its keys.

        With ``again``, the file must be a regular file, because other files, such as a pipe,
        cannot be read a second time without blocking. Raises OSError if the file cannot be read,
        and ValueError if it contains no keys or invalid keys.
        """
        access = Access.parse(_read_keys(self.path, again=again))
        if not access.enabled:
            raise ValueError("the file contains no key")
        return access

    def state(self) -> FileState:
        """Return the current state of the file at the path. Symbolic links are followed."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True, slots=True)
class KeySources:
    """The sources of a server's keys. ``fixed`` contains the keys from the environment."""

    fixed: tuple[Principal, ...] = ()
    files: tuple[KeyFile, ...] = ()

    def read_again(self) -> Access:
        """Read the files again, and return all keys, including the fixed keys.

        Raises ValueError. The message names the source but contains none of the source's text.
        """
        found = [*self.fixed]
        for file in self.files:
            try:
                found += file.read(again=True).principals
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ValueError(f"{file.variable}={str(file.path)!r}: {reason}") from None
        return Access(found)

    def state(self) -> list[FileState]:
        """Return the state of each file."""
        return [file.state() for file in self.files]


def key_files(environ: MutableMapping[str, str]) -> Iterator[KeyFile]:
    """Yield the key files given by the environment, without duplicates."""
    seen = set()
    if named := environ.get("TOPICS_API_KEYS_FILE", "").strip():
        path = Path(named).absolute()
        seen.add(path)
        yield KeyFile(path, "TOPICS_API_KEYS_FILE")
    if directory := environ.get("CREDENTIALS_DIRECTORY"):
        path = Path(directory, CREDENTIAL).absolute()
        if path.exists() and path not in seen:
            yield KeyFile(path, f"$CREDENTIALS_DIRECTORY/{CREDENTIAL}")


def check(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Check a key file for the command line. Returns its keys and its errors.

    Each key has its line, alias and rights; ``prefixes`` None permits all names. An error in a line
    contains the line number. Raises OSError if the file cannot be read.
    """
    text = bytearray(KEY_FILE_MAX_BYTES + 1)
    length = _read_into(path, text, again=False)
    if length > KEY_FILE_MAX_BYTES:
        return [], [f"the file is longer than {KEY_FILE_MAX_BYTES} bytes"]
    found, mistakes, lines = [], [], dict[bytes, int]()
    # Read line by line, so that an error can contain its line number. The server itself reads the
    # file in one pass.
    for number, line in enumerate(text[:length].split(b"\n"), start=1):
        if line.lstrip(b" \t").startswith(b"#") or not _ANYTHING.search(line):
            continue
        try:
            principals = Access.parse(line.translate(_LINE_ENDS)).principals
        except ValueError as error:
            mistakes.append(f"line {number}: {error}")
            continue
        # Report two entries with the same key, because only one of them could apply.
        for each in principals:
            first = lines.setdefault(each.digest, number)
            if first != number:
                mistakes.append(f"line {number}: the same key as in line {first}")
            scopes = [str(scope.name).lower() for scope in Scope if each.allows(scope)]
            rights = {"scopes": scopes, "prefixes": each.prefixes}
            found.append({"line": number, "alias": each.alias, **rights})
    if not (found or mistakes):
        mistakes.append("the file contains no key")
    return found, mistakes


def pop_environment_keys(environ: MutableMapping[str, str]) -> bytearray:
    """Remove TOPICS_API_KEYS from the environment and return its value.

    Returns an empty buffer if the variable is not set. All other copies of the value in memory are
    overwritten, including the one that /proc/PID/environ shows.
    """
    if API_KEYS not in environ:
        return bytearray()
    if environ is not os.environ:
        return bytearray(environ.pop(API_KEYS), "utf-8", "surrogateescape")
    name = API_KEYS.encode()
    value = os.environb[name]
    text = bytearray(value)
    libc = ctypes.CDLL(None)
    libc.getenv.restype, libc.strlen.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    # The environment block of the process, which /proc shows, is overwritten in place.
    if address := libc.getenv(name):
        ctypes.memset(address, 0, libc.strlen(address))
    del os.environb[name]
    # Also overwrite the bytes object, to which only os.environ referred. One-byte objects must stay
    # unchanged, because the interpreter shares them.
    if sys.implementation.name == "cpython" and len(value) > 1:
        ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
    return text


def _read_keys(path: Path, *, again: bool) -> bytearray:
    """Return the text of a key file as comma-separated entries; empty if it has no entries."""
    text = bytearray(KEY_FILE_MAX_BYTES + 1)
    try:
        length = _read_into(path, text, again=again)
        if length > KEY_FILE_MAX_BYTES:
            raise ValueError(f"the file is longer than {KEY_FILE_MAX_BYTES} bytes")
    # The buffer may contain secrets, even if the file is invalid.
    except BaseException:
        text[:] = bytes(len(text))
        raise
    del text[length:]
    # Replace comments and line ends in place, so that no second copy of a secret exists.
    for start, end in [found.span() for found in _NO_KEY.finditer(text)]:
        text[start:end] = b"," * (end - start)
    return text if _ANYTHING.search(text) else bytearray()


def _read_into(path: Path, text: bytearray, *, again: bool) -> int:
    """Read the file into ``text`` until ``text`` is full or the file ends.

    Returns the number of bytes. With ``again``, raises ValueError for anything but a regular file.
    """

    def opened(name: str, flags: int) -> int:
        # Opening a pipe would block the supervisor, which must never block.
        return os.open(name, flags | (os.O_NONBLOCK if again else 0))

    with open(path, "rb", buffering=0, opener=opened) as file, memoryview(text) as view:
        if again and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("the file is not a regular file, so it cannot be reloaded")
        length = 0
        while count := file.readinto(view[length:]):
            length += count
        return length


# Reload after SIGHUP


class KeyReload:
    """The keys of the running server, which SIGHUP reloads.

    ``table`` is the shared memory from which the front reads the keys. The module docstring has the
    state diagram.
    """

    def __init__(self, board: Board, sources: KeySources, access: Access) -> None:
        """Publish ``access``, the keys that were read at startup."""
        self._board, self._sources = board, sources
        self._access = access
        self.table = KeyTable.of(access)
        self.next_at = math.inf  # monotonic time in s at which to call `advance`; infinite if idle
        self._reload_deadline = math.inf
        # The state of the files at the last check. The files are read when it has not changed for
        # `SETTLE_S`.
        self._seen: list[FileState] = []

    def start_reload(self, now: float) -> None:
        """Start a reload after a SIGHUP, unless a reload is already in progress."""
        if not self._sources.files:
            log.info("signal ignored", signal="SIGHUP", reason="there is no key file")
        elif self.next_at == math.inf:
            self._reload_deadline = now + RELOAD_TIMEOUT_S
            self._check_files(now)

    def advance(self, now: float) -> None:
        """Continue a reload: read the key files when they have not changed for SETTLE_S.

        If the files are invalid or do not stop changing, the failure is logged and counted, and the
        earlier keys remain valid.
        """
        if now < self.next_at:
            return
        # The files have changed since the last check. Wait again, until the deadline.
        if now < self._reload_deadline and self._sources.state() != self._seen:
            self._check_files(now)
            return
        try:
            access = self._read()
            # A file changed while it was read. The keys may be incomplete and are not used.
            if access is None and now < self._reload_deadline:
                self._check_files(now)
                return
            self._publish(access)
        except ValueError as error:
            self._board.keys_reload_failed += 1
            keys = len(self._access.principals)  # the earlier keys remain valid
            log.error("keys not reloaded", keys=keys, reason=str(error))  # noqa: TRY400
        self.next_at = self._reload_deadline = math.inf

    def _check_files(self, now: float) -> None:
        self._seen, self.next_at = self._sources.state(), now + SETTLE_S

    def _read(self) -> Access | None:
        """Return the keys from the files, or None if a file changed while it was read."""
        try:
            access = self._sources.read_again()
        except ValueError:
            if self._sources.state() != self._seen:
                return None
            raise
        return access if self._sources.state() == self._seen else None

    def _publish(self, access: Access | None) -> None:
        if access is None:
            raise ValueError("the key files keep changing")
        changes = _changes(self._access, access)
        # Publish only if something differs, so that the front does not drop its caches
        # unnecessarily.
        if any(changes.values()):
            self.table.publish(access)
            self._access = access
        log.info("keys reloaded", keys=len(access.principals), **changes)


def _changes(before: Access, after: Access) -> dict[str, int]:
    """Return the numbers of added, removed and changed keys, as fields of a log line."""
    kept = [(one, now) for one in before.principals if (now := after.current(one)) is not None]
    return {
        "added": len(after.principals) - len(kept),
        "removed": len(before.principals) - len(kept),
        "changed": sum(not now.has_rights_of(one) for one, now in kept),
    }
