"""Fence: prevents a former source from starting after its standby has been promoted.

The fence is a file that a server's machine and its standby's machine share (TOPICS_FENCE). The file
``meta`` of a data directory counts its promotions (``data_dir.py``). The fence contains the highest
count that a server with this fence has started with, or that a promotion has announced. A server
does not start in a directory with a lower count, because such a directory belongs to a former
source. The check depends on the shared file. If a former source does not find the file, it starts.
"""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec

from topics.storage.disk import replace_file


class Fenced(Exception):
    """Another copy of this data has been promoted."""


class Fence(msgspec.Struct, frozen=True):
    """The content of the fence: a promotion count, and the directory that has this count."""

    promotions: int
    directory: str
    host: str


def check_fence(fence: Path, directory: Path, promotions: int) -> None:
    """Check that a server may start in ``directory``, and write its count to the fence.

    Raise `Fenced` or OSError.
    """
    found = _read(fence)
    if found is not None and found.promotions > promotions:
        raise Fenced(
            f"{directory} is a former source: {found.directory} on {found.host} was promoted"
            f" ({fence} has promotion {found.promotions}, this directory {promotions}); start"
            " a standby of the new server in an empty directory. Without the file, both servers"
            " would start, and their data would diverge"
        )
    if found is None or found.promotions < promotions:
        replace_file(fence, msgspec.json.encode(_entry(directory, promotions)))


def announce_promotion(fence: Path, directory: Path, promotions: int) -> None:
    """Write to the fence that ``directory`` has this count. Raise `Fenced` or OSError.

    No other directory may have this count or a higher one. Two standbys of one source would
    otherwise get the same count, and both servers would start. A repeated promotion finds its own
    announcement, which is permitted.
    """
    found, own = _read(fence), _entry(directory, promotions)
    if found is not None and found.promotions >= promotions and found != own:
        raise Fenced(
            f"{found.directory} on {found.host} was promoted before ({fence} has promotion"
            f" {found.promotions}, this one would be {promotions}); start a standby of the new"
            " server in an empty directory. Without the file, both would be promoted, and their"
            " data would diverge"
        )
    replace_file(fence, msgspec.json.encode(own))


def _entry(directory: Path, promotions: int) -> Fence:
    return Fence(promotions, str(directory.absolute()), socket.gethostname())


def _read(fence: Path) -> Fence | None:
    """Return the content of the fence, or None if it is missing. Raise `Fenced` or OSError."""
    try:
        return msgspec.json.decode(fence.read_bytes(), type=Fence)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise Fenced(f"{fence} is not a fence: {error}") from error
