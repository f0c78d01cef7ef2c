"""A finding: something in a file that is not as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topics.formats.buffers import Buffer
from topics.storage.mapped_file import CANNOT_READ, MappedFile

_ZEROS = bytes(1 << 20)


class Finding(NamedTuple):
    """Something that is not as it was written."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason}"


def read_file(path: Path) -> tuple[memoryview, list[Finding]]:
    """All bytes of a file, with zeros for what cannot be read, which is a finding for each page.

    Raises OSError.
    """
    data, bad = MappedFile.of(path).salvage()
    return data, [Finding(path, at, CANNOT_READ) for at in bad]


def is_zero(data: Buffer) -> bool:
    """Whether the bytes are zeros alone."""
    return all(
        data[start : start + len(_ZEROS)] == _ZEROS[: len(data) - start]
        for start in range(0, len(data), len(_ZEROS))
    )
