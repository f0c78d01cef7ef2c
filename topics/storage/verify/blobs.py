"""Verifies a blob: every byte, and that it is of the write in its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.storage.verify.finding import Finding, read_file


def verify_blob(path: Path) -> Iterator[Finding]:
    """A blob file, which must be that of the write in its name."""
    data, unreadable = read_file(path)
    if unreadable:
        yield from unreadable
        return
    try:
        topic_id, first_seq = (int(part, 16) for part in path.stem.split("-"))
        blob.check(data, topic_id, first_seq)
    except (BadBlob, ValueError) as error:
        yield Finding(path, 0, f"blob {error}")
