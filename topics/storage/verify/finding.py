"""A finding: something in a file that is not as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topics.formats.buffers import Buffer

KEPT = "kept aside; readers are told of what was in it"
_ZEROS = bytes(1 << 20)


class Finding(NamedTuple):
    """Something that is not as it was written."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason}"


def is_zero(data: Buffer) -> bool:
    """Whether the bytes are zeros alone."""
    return all(
        data[start : start + len(_ZEROS)] == _ZEROS[: len(data) - start]
        for start in range(0, len(data), len(_ZEROS))
    )
