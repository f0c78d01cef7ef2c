"""Keys: where the supervisor has them from, and how they come to the front.

    TOPICS_API_KEYS         taken out of the environment at the start; these keys stay
    TOPICS_API_KEYS_FILE    read at the start and after each hang-up
    systemd's credential    `topics.api-keys`, likewise, if it is there at the start

A key file may have line ends instead of commas, and lines that start with ``#``. A secret is
overwritten as soon as it is hashed: this module must never copy a part of one, and an error must
never show one.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from topics.config import API_KEYS
from topics.engine.access import Access, Principal

CREDENTIAL = "topics.api-keys"
KEY_FILE_MAX_BYTES = 1024 * 1024
_ANYTHING = re.compile(rb"[^,\s]")
_NO_KEY = re.compile(rb"^[ \t]*#.*$|[\r\n]+", re.MULTILINE)  # in a key file: comments and line ends

FileState = tuple[int, ...]
"""What changes with a file's content; empty when there is no file."""


@dataclass(frozen=True, slots=True)
class KeyFile:
    """One file of keys. ``variable`` is what names it to people."""

    path: Path
    variable: str

    def read(self, *, again: bool = False) -> Access:
        """The keys. ``again``: only from a regular file, because nothing else can be read twice
        without waiting. Raises OSError, and ValueError when it holds no keys, or wrong ones.
        """
        access = Access.parse(_read_keys(self.path, again=again))
        if not access.enabled:
            raise ValueError("the file holds no key")
        return access

    def state(self) -> FileState:
        """What the file system says of the file, wherever the path leads now."""
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True, slots=True)
class KeySources:
    """Where a server's keys come from. ``fixed`` are those of the environment."""

    fixed: tuple[Principal, ...] = ()
    files: tuple[KeyFile, ...] = ()

    def read_again(self) -> Access:
        """The keys of now. Raises ValueError, which names the source and shows nothing of it."""
        found = [*self.fixed]
        for file in self.files:
            try:
                found += file.read(again=True).principals
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ValueError(f"{file.variable}={str(file.path)!r}: {reason}") from None
        return Access(found)

    def state(self) -> list[FileState]:
        """The state of every file."""
        return [file.state() for file in self.files]


def key_files(environ: MutableMapping[str, str]) -> Iterator[KeyFile]:
    """The files that the environment names, each once."""
    seen = set()
    if named := environ.get("TOPICS_API_KEYS_FILE", "").strip():
        path = Path(named).absolute()
        seen.add(path)
        yield KeyFile(path, "TOPICS_API_KEYS_FILE")
    if directory := environ.get("CREDENTIALS_DIRECTORY"):
        path = Path(directory, CREDENTIAL).absolute()
        if path.exists() and path not in seen:
            yield KeyFile(path, f"$CREDENTIALS_DIRECTORY/{CREDENTIAL}")


def take_fixed(environ: MutableMapping[str, str]) -> bytearray:
    """Take TOPICS_API_KEYS out of the environment and overwrite it, in /proc/PID/environ, too."""
    if API_KEYS not in environ:
        return bytearray()
    if environ is not os.environ:
        return bytearray(environ.pop(API_KEYS), "utf-8", "surrogateescape")
    name = API_KEYS.encode()
    value = os.environb[name]
    text = bytearray(value)
    libc = ctypes.CDLL(None)
    libc.getenv.restype, libc.strlen.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    if address := libc.getenv(name):
        ctypes.memset(address, 0, libc.strlen(address))
    del os.environb[name]
    # The bytes object that only os.environ held; those of one byte are the interpreter's.
    if sys.implementation.name == "cpython" and len(value) > 1:
        ctypes.memset(id(value) + bytes.__basicsize__ - 1, 0, len(value))
    return text


def _read_keys(path: Path, *, again: bool) -> bytearray:
    """A key file as comma-separated entries."""
    text = bytearray(KEY_FILE_MAX_BYTES + 1)
    try:
        length = _read_into(path, text, again=again)
        if length > KEY_FILE_MAX_BYTES:
            raise ValueError(f"the file is longer than {KEY_FILE_MAX_BYTES} bytes")
    except BaseException:
        text[:] = bytes(len(text))
        raise
    del text[length:]
    # In place, so that there is never a second copy of a secret.
    for start, end in [found.span() for found in _NO_KEY.finditer(text)]:
        text[start:end] = b"," * (end - start)
    return text if _ANYTHING.search(text) else bytearray()


def _read_into(path: Path, text: bytearray, *, again: bool) -> int:
    """How many bytes of the file were read: ``text`` is full, or the file is at its end."""

    def opened(name: str, flags: int) -> int:
        return os.open(name, flags | (os.O_NONBLOCK if again else 0))

    with open(path, "rb", buffering=0, opener=opened) as file, memoryview(text) as view:
        if again and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("the file is not a regular file, which could be read again")
        length = 0
        while count := file.readinto(view[length:]):
            length += count
        return length
