"""Promotion: turns a standby (`standby.py`) into the data directory of a server.

    hard links to the newest generation -> data directory in DIR/.promoting, as in a restore
        -> folders renamed into DIR -> meta renamed -> the standby's files removed

Until ``meta`` is renamed, DIR is a standby, and a killed promotion can be repeated. After that,
DIR is a data directory, and `promote` only removes the rest of the standby.

The server may have acknowledged writes after the cut of the generation. Readers may know their
seqs. So each topic continues above all seqs that it can have assigned so far (`seqs_since`), and
reports the seqs in between as lost. With ``as_new`` the topics get new epochs instead.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from topics.storage.backup_restore import BackupDamaged, build, sync_files
from topics.storage.data_dir import read_meta, write_meta
from topics.storage.disk import Damaged, sync_directory
from topics.storage.fence import announce_promotion
from topics.storage.folders import PARTS
from topics.storage.standby import BadStandby, Generation, Standby

SEQS_PER_S: Final = 5_000_000  # 3.5 times the highest measured rate of one topic
SLACK_S: Final = 60
SEQS_MAX: Final = 1 << 50  # 7 years; a wrong clock must not exhaust the seqs (1 << 53)
_BUILD: Final = ".promoting"


def seqs_since(cut_ms: int, now_ms: int) -> int:
    """Return an upper bound for the number of seqs that a topic has assigned since ``cut_ms``."""
    return min(SEQS_MAX, SEQS_PER_S * (max(0, now_ms - cut_ms) // 1000 + SLACK_S))


def promote(
    standby: Standby,
    *,
    number: int | None = None,
    as_new: bool,
    with_damage: bool,
    fence: Path | None,
) -> tuple[Generation | None, list[str]]:
    """Turn a locked standby into a data directory, with the generation ``number`` or the newest
    one. Return the generation and a list of warnings.

    The generation is None if an earlier call was killed after it had renamed ``meta``. Raise
    `BadStandby`, `BackupDamaged`, `Damaged`, `Fenced` or OSError. After such an error, the standby
    can still be promoted.
    """
    path = standby.path
    if (path / "meta").exists():
        _remove_standby(standby)
        return None, []
    generation = standby.newest() if number is None else standby.generation(number)
    if generation is None:
        raise BadStandby(f"{path} has no complete generation")
    aside = path / _BUILD
    shutil.rmtree(aside, ignore_errors=True)
    try:
        findings = _build(standby, generation, aside, as_new=as_new, with_damage=with_damage)
        meta = read_meta(aside)
        assert meta is not None, "a backup contains meta"
        promotions = meta.promotions + 1
        write_meta(aside, meta.shards, promotions)
        # A promotion by root must leave files that the owner of DIR, a server, can read.
        sync_files(aside, path.stat())
        if fence is not None:
            announce_promotion(fence, path, promotions)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for part in PARTS:
        shutil.rmtree(path / part, ignore_errors=True)
        if (aside / part).exists():
            (aside / part).rename(path / part)
    sync_directory(path)
    (aside / "meta").rename(path / "meta")
    sync_directory(path)
    _remove_standby(standby)
    return generation, findings


def _build(
    standby: Standby, generation: Generation, aside: Path, *, as_new: bool, with_damage: bool
) -> list[str]:
    """Create the data directory in ``aside``. Return the warnings."""
    manifest = standby.unpack(generation, aside, link=True)
    skip = 0 if as_new else seqs_since(generation.as_of_ms, time.time_ns() // 1_000_000)
    try:
        return build(
            *(aside, standby.path, manifest), as_new=as_new, with_damage=with_damage, skip=skip
        )
    except (BackupDamaged, Damaged):
        # Linked files are not compared with their hashes, because that would read all data twice.
        if damaged := standby.damaged(generation):
            raise BadStandby(
                f"{len(damaged)} files of generation {generation.number} were altered on this"
                f" machine, for example {damaged[0]}; promote an older one: {standby.path}@NUMBER"
            ) from None
        raise


def _remove_standby(standby: Standby) -> None:
    for folder in (standby.path / _BUILD, standby.generations, standby.files):
        shutil.rmtree(folder, ignore_errors=True)
    (standby.path / "standby.json").unlink(missing_ok=True)
    sync_directory(standby.path)
