"""Names of the server's own files in a shard's folders. All other files are foreign.

    folder      name                                      contents
    wal         BASE.wal                                  a log file
                BASE.new                                  a log file that is being created
                BASE.spare, BASE.WORD.HEX.spare,          a preallocated file for a later log file
                log.HEX.spare
                log.reserve                               a preallocated file for frames that free
                                                          space
    checkpoint  NUMBER.ckpt, NUMBER.ckpt.tmp              a checkpoint; one that is being created
                next.reserve                              space for the next checkpoint
    segment     NUMBER.seg, NUMBER.tmp                    a segment; one that is being created
    blob        TOPIC-SEQ.blob, TOPIC-SEQ.new             a blob; one that is being created
    all         NAME.damaged, NAME.N.damaged              a damaged file, kept for the operator

Foreign files occur because operators copy files, and because file systems add folders of their own
(``.snapshot``). Startup, checkpoints and sealing rounds read, change and remove only files with the
names above. `topics verify` lists foreign files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

LOG: Final = re.compile(r"[0-9a-f]{16}\.wal")
NEW_LOG: Final = re.compile(r"[0-9a-f]{16}\.new")
SPARE: Final = re.compile(r"(?:log|[0-9a-f]{16})(?:\.[a-z]+)?(?:\.[0-9a-f]{8})?\.spare")
LOG_RESERVE: Final = re.compile(r"log\.reserve")
CHECKPOINT: Final = re.compile(r"[0-9a-f]{16}\.ckpt")
NEW_CHECKPOINT: Final = re.compile(r"[0-9a-f]{16}\.ckpt\.tmp")
NEXT_RESERVE: Final = re.compile(r"next\.reserve")
SEGMENT: Final = re.compile(r"[0-9a-f]{10}\.seg")
NEW_SEGMENT: Final = re.compile(r"[0-9a-f]{10}\.tmp")
BLOB: Final = re.compile(r"(0|[1-9a-f][0-9a-f]*)-(0|[1-9a-f][0-9a-f]*)\.blob")
NEW_BLOB: Final = re.compile(r"(0|[1-9a-f][0-9a-f]*)-(0|[1-9a-f][0-9a-f]*)\.new")

_OWN: Final = {
    "wal": (LOG, NEW_LOG, SPARE, LOG_RESERVE),
    "checkpoint": (CHECKPOINT, NEW_CHECKPOINT, NEXT_RESERVE),
    "segment": (SEGMENT, NEW_SEGMENT),
    "blob": (BLOB, NEW_BLOB),
}
_DAMAGED: Final = re.compile(r"(.*?)(?:\.[0-9]+)?\.damaged")
_TOP: Final = frozenset({"LOCK", "meta", "meta.new", "lost+found", *_OWN})


class Foreign(NamedTuple):
    """The path of a foreign file in a data directory."""

    path: Path

    def __str__(self) -> str:
        return f"{self.path}: foreign name, ignored"


def own_files(folder: Path, *patterns: re.Pattern[str]) -> list[Path]:
    """Return the sorted files whose names match a pattern; none if the folder is missing."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if any(each.fullmatch(entry.name) for each in patterns) and entry.is_file()
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names]


def foreign(data_dir: Path, shards: int) -> Iterator[Foreign]:
    """Yield every foreign file and folder in a data directory."""
    yield from _foreign(data_dir, lambda name, _: name in _TOP)
    numbers = {f"{shard:02d}" for shard in range(shards)}
    for part in sorted(_OWN):
        folder = data_dir / part
        yield from _foreign(folder, lambda name, is_file: name in numbers and not is_file)
        for number in sorted(numbers):
            yield from _foreign(folder / number, partial(_is_own, part))


def _is_own(part: str, name: str, is_file: bool) -> bool:
    kept = _DAMAGED.fullmatch(name)
    own = kept[1] if kept else name
    return is_file and any(each.fullmatch(own) for each in _OWN[part])


def _foreign(folder: Path, is_own: Callable[[str, bool], bool]) -> Iterator[Foreign]:
    if folder.is_dir():
        for entry in sorted(os.scandir(folder), key=lambda each: each.name):
            if not is_own(entry.name, entry.is_file()):
                yield Foreign(folder / entry.name)
