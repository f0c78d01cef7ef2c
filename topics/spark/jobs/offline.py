"""Offline: the records of a data directory that no server has, to Parquet, or counted."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from topics.errors import ExitCode
from topics.spark.errors import DamagedData, JobError, WrongPath, WrongUse
from topics.spark.jobs.arguments import Commands
from topics.spark.progress import Progress

if TYPE_CHECKING:
    from topics.spark.jobs.dated_parquet import DatedParquet
    from topics.storage.disk import Damaged
    from topics.storage.offline.directory import OfflineDirectory, OfflineTopic

GLOB = "*"
FINDINGS_MAX = 20  # in the summary


def add(commands: Commands) -> None:
    """``topics-spark offline DATA_DIR TOPIC [OUT]``."""
    parser = commands.add_parser(
        "offline",
        help="a data directory without its server, to Parquet",
        description="Write the live records of a stopped server's data directory, of a copy or of"
        " a snapshot, to Parquet files by date; what is deleted, evicted or too old is left out, as"
        " the server does. Nothing in the directory is changed. No server and no Java is needed.",
        epilog=ExitCode.sentence(),
    )
    parser.add_argument("data_dir", type=Path, help="the directory; a server must not have it")
    parser.add_argument("topic", help="a topic, or all that begin so: 'tenant42:*', or '*'")
    parser.add_argument("out", type=Path, nargs="?", help="a new folder for the files")
    parser.add_argument("--count", action="store_true", help="only say how many records there are")
    parser.add_argument(
        "--ignore-damage",
        action="store_true",
        help="write what can be read, and say what is lost",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress")


def run(options: argparse.Namespace) -> Summary:
    """Do the job."""
    if options.count == (options.out is not None):
        raise WrongUse("give either a folder OUT for the files or --count")
    return offline(
        options.data_dir,
        options.topic,
        options.out,
        ignore_damage=options.ignore_damage,
        quiet=options.quiet,
    )


def offline(
    data_dir: Path,
    name: str,
    out: Path | None = None,
    *,
    ignore_damage: bool = False,
    quiet: bool = True,
) -> Summary:
    """Write the live records of a topic, or of all that begin with what stands before a ``*``, to
    the new folder ``out``; without one, count them. Raises `JobError`: then ``out`` is not there.
    """
    from topics.storage.offline.directory import OfflineDirectory

    names = None if name.endswith(GLOB) else [name]
    with (
        directory_errors(),
        OfflineDirectory(data_dir, names=names, ignore_damage=ignore_damage) as directory,
    ):
        topics = wanted(directory, name)
        findings = told(directory.damage)
        if out is None:
            return Summary([_counted(topic) for topic in topics], findings)
        export = Export(out, ignore_damage=ignore_damage, quiet=quiet)
        return export.run(topics).with_findings(findings)


def wanted(directory: OfflineDirectory, name: str) -> list[OfflineTopic]:
    """The topic of that name, or those that begin with what stands before the ``*``. Raises
    `JobError` when there is none.
    """
    prefix = name.removesuffix(GLOB)
    found = [
        topic
        for each, topic in sorted(directory.topics.items())
        if each == name or (name.endswith(GLOB) and each.startswith(prefix))
    ]
    if not found:
        what = f'topic that begins with "{prefix}"' if name.endswith(GLOB) else f'topic "{name}"'
        raise JobError(f"there is no {what} in {directory.path}")
    return found


@dataclass(frozen=True, slots=True)
class Figures:
    """A topic: how many records the directory has, how many were written, how many are damaged."""

    name: str
    planned: int
    written: int
    lost: int
    earliest_seq: int
    head_seq: int

    def text(self) -> str:
        """A line of the summary."""
        lost = f", {self.lost:,} lost to damage" if self.lost else ""
        return (
            f"{self.name}: {self.planned - self.lost:,} records{lost},"
            f" earliest {self.earliest_seq:,}, head {self.head_seq:,}"
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What was done. ``out`` and ``seconds``: of files that were written."""

    topics: list[Figures]
    findings: list[str]
    out: Path | None = None
    seconds: float = 0.0

    def with_findings(self, findings: list[str]) -> Summary:
        """The same with more of them in front."""
        return Summary(self.topics, [*findings, *self.findings], self.out, self.seconds)

    @property
    def agrees(self) -> bool:
        """Whether every record that the directory has was written, or told as lost."""
        return all(each.planned == each.written + each.lost for each in self.topics)

    def text(self) -> str:
        """For a terminal."""
        lines = [each.text() for each in self.topics]
        lines += [f"damaged: {finding}" for finding in self.findings[:FINDINGS_MAX]]
        if len(self.findings) > FINDINGS_MAX:
            lines.append(f"damaged: and {len(self.findings) - FINDINGS_MAX} more places")
        written = sum(each.written for each in self.topics)
        if self.out is not None:
            rate = written / self.seconds if self.seconds else 0.0
            lines.append(
                f"{written:,} records written to {self.out} in {self.seconds:.1f} s"
                f" ({rate:,.0f} records/s)"
            )
        if not self.agrees:
            planned = sum(each.planned for each in self.topics)
            lines.append(f"MISMATCH: the directory has {planned:,} records")
        return "\n".join(lines)


class Export:
    """Writes topics to a new folder ``out``."""

    def __init__(self, out: Path, *, ignore_damage: bool = False, quiet: bool = True) -> None:
        self._out, self._ignore_damage, self._quiet = out, ignore_damage, quiet
        self._done = 0
        self._findings: list[str] = []

    def run(self, topics: list[OfflineTopic]) -> Summary:
        """Write all of them. Raises `JobError`, `Damaged`, OSError: then ``out`` is not there."""
        from topics.spark.jobs.dated_parquet import DatedParquet

        started = time.monotonic()
        with DatedParquet(self._out) as files:
            if self._quiet:
                figures = [self._write(topic, files) for topic in topics]
            else:
                total = sum(topic.count for topic in topics)
                with Progress(sys.stderr, total, lambda: self._done) as progress:
                    figures = [self._write(topic, files) for topic in topics]
                    progress.finish(self._done)
        return Summary(figures, self._findings, self._out, time.monotonic() - started)

    def _write(self, topic: OfflineTopic, files: DatedParquet) -> Figures:
        from topics.storage.offline.reader import PieceReader

        before, lost = self._done, 0
        for piece in topic.pieces():
            reader = PieceReader(piece, ignore_damage=self._ignore_damage)
            for records in reader.pages():
                files.write(records, topic.name)
                self._done += len(records)
            lost += reader.lost
            self._findings += told(reader.damage)
        return Figures(
            topic.name, topic.count, self._done - before, lost, topic.earliest_seq, topic.head_seq
        )


def _counted(topic: OfflineTopic) -> Figures:
    return Figures(topic.name, topic.count, topic.count, 0, topic.earliest_seq, topic.head_seq)


def told(damage: list[Damaged]) -> list[str]:
    """Damage in lines."""
    return [str(each) for each in damage]


@contextmanager
def directory_errors() -> Iterator[None]:
    """What is wrong with a directory, as a `JobError` of one line."""
    from topics.storage.data_dir import (
        DataDirectoryDamaged,
        DataDirectoryInUse,
        NotADataDirectory,
    )
    from topics.storage.disk import Damaged

    try:
        yield
    except NotADataDirectory as error:
        raise WrongPath(str(error)) from error
    except (Damaged, DataDirectoryDamaged) as error:
        raise DamagedData(f"{error} (--ignore-damage reads the rest)") from error
    except DataDirectoryInUse as error:
        raise JobError(f"{error}; stop the server, or read a snapshot or a copy") from error
    except OSError as error:
        raise JobError(f"{error.filename or ''}: {error.strerror or error}") from error
