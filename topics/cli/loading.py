"""Loading: many records into one topic, as appends of a bounded size that are known again.

Equal input makes equal chunks and keys (`topics.client.chunks`). So a second run finds its records
there, and a run after an interruption continues after them. A chunk is sent when it is full or at
the end of the input, but not after an error, because a corrected line must not move the bounds of
the chunks before it.
"""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import click
from msgspec import Raw

from topics.cli import units
from topics.cli.shell import Failed, Shell
from topics.client import Invalid, NotFound, Refused, Topics, Unavailable, calls
from topics.client.chunks import Chunk, Chunker, ContentKeys
from topics.errors import ExitCode

T = TypeVar("T")
INPUT: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)

CHUNK_RECORDS: Final = 1000
CHUNK_BYTES: Final = 1 << 20
LINE_MAX_BYTES: Final = 64 << 20  # as the body of a request
BLOCK_BYTES: Final = 1 << 18
LINGER_S: Final = 0.05
WINDOW: Final = "idempotency_window_ms"
WINDOW_MS: Final = 7 * units.MS["d"]  # a load that fails on Friday is run again on Monday


def reached(shell: Shell) -> Topics:
    """A patient client of a server that is there now: a wrong address is told at once. Raises
    `TopicsError`.
    """
    client = shell.client(is_patient=True)
    if shell.timeout is None:
        with suppress(Unavailable):  # it starts, or lacks a shard
            client.once(calls.ready())
    return client


@contextmanager
def tracked(shell: Shell, steps: Iterable[T], total: int) -> Iterator[Iterable[T]]:
    """Show on a terminal how many of ``total`` steps are done."""
    if total < 10 or not sys.stderr.isatty() or shell.is_quiet or shell.is_json:
        yield steps
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        yield progress.track(steps, total, description="")


@contextmanager
def opened(
    shell: Shell, file: str, on_idle: Callable[[], None] | None = None
) -> Iterator[Iterable[bytes]]:
    """The blocks of a file, or of stdin (``-``); a terminal shows how many are done."""
    total = 0 if file == "-" else Path(file).stat().st_size // BLOCK_BYTES
    with (
        click.open_file(file, "rb") as stream,
        tracked(shell, blocks(stream, on_idle), total) as found,
    ):
        yield found


def bad_input(place: str, what: str) -> Failed:
    """The input is wrong there."""
    return Failed(f"{place}: {what}", "bad_input", ExitCode.USAGE)


def blocks(stream: IO[bytes], on_idle: Callable[[], None] | None = None) -> Iterator[bytes]:
    """What a stream has, as it comes. ``on_idle`` is called while there is no more."""
    while True:
        with suppress(io.UnsupportedOperation):  # no file of the system: it never waits
            while on_idle is not None and not select.select([stream], [], [], LINGER_S)[0]:
                on_idle()
        if not (block := stream.read1(BLOCK_BYTES)):  # type: ignore[attr-defined]
            return
        yield block


class Lines:
    """Lines without their ends. ``place`` says which one was the last."""

    def __init__(self, blocks: Iterable[bytes], name: str) -> None:
        self._blocks, self._name, self._number = blocks, name, 0

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self._name}, line {self._number}"

    def __iter__(self) -> Iterator[bytes]:
        begun = bytearray()  # a line without its end
        for block in self._blocks:
            first, *others = block.split(b"\n")
            begun += first
            if len(begun) > LINE_MAX_BYTES:
                raise bad_input(self.place, f"the next has over {units.size(LINE_MAX_BYTES)}")
            if others:
                *whole, rest = others
                for line in (bytes(begun), *whole):
                    self._number += 1
                    yield line
                begun = bytearray(rest)
        if begun:
            self._number += 1
            yield bytes(begun)


class Loader:
    """Appends to one topic. ``prefix``: of keys by which equal input is known again; None appends
    it each time. ``config`` is that of a topic which this makes.
    """

    def __init__(
        self,
        shell: Shell,
        client: Topics,
        topic: str,
        prefix: str | None,
        *,
        config: Mapping[str, Any] = {},
    ) -> None:
        self._shell, self._client, self._topic, self._config = shell, client, topic, config
        self._chunker = Chunker[tuple[str, bytes]](CHUNK_RECORDS, CHUNK_BYTES)
        self._keys = None if prefix is None else ContentKeys(prefix)
        self._is_open = prefix is None
        self.appended = self.deduped = self.first_seq = self.last_seq = 0

    def add(self, record: bytes, place: str, origin: bytes | None = None) -> None:
        """Append a record (§2) in its turn; ``place`` is where it comes from. It is known again by
        ``origin``, or by itself.
        """
        for chunk in self._chunker.add(record, (place, origin or record)):
            self._append(chunk)

    def flush(self) -> None:
        """Append what waits. Raises `TopicsError`."""
        for chunk in self._chunker.flush():
            self._append(chunk)

    def _append(self, chunk: Chunk[tuple[str, bytes]]) -> None:
        self.open()
        key = calls.AUTO
        if self._keys is not None:
            key = self._keys.key(origin for _, origin in chunk.marks)
        call = calls.append(self._topic, {"records": Raw(chunk.records)}, key)
        try:
            receipt = self._client.call(call)
        except Invalid as error:
            if "index" not in error.detail:
                raise
            place, _ = chunk.marks[error.detail["index"]]
            raise bad_input(place, error.message) from None
        self._shell.back()
        if receipt.created:
            self._shell.say(f"made the topic {self._topic}")
        if receipt.deduped:
            self.deduped += receipt.count
        else:
            self.appended += receipt.count
            self.first_seq, self.last_seq = self.first_seq or receipt.first_seq, receipt.last_seq

    def open(self) -> None:
        """Make the topic with a window that is long enough for a second run; warn when that of a
        topic which is there is short. Raises `TopicsError`.
        """
        if self._is_open:
            return
        self._is_open, name, say = True, self._topic, self._shell.say
        config = self._config
        # A key that may only write appends all the same, but not to a topic of another config.
        with suppress(*() if config else (Refused,)):
            try:
                window_ms = self._client.topic(name).state().config[WINDOW]
            except NotFound:
                window_ms = max(config.get(WINDOW, 0), WINDOW_MS)
                self._client.call(calls.put_topic(name, {**config, WINDOW: window_ms}))
                say(f"made the topic {name}; it knows records again for 7 days")
            if window_ms < units.MS["h"]:
                say(
                    f"{name} knows records again for {units.duration(window_ms)} only, a later run"
                    f" appends them twice; topics config {name} {WINDOW}={WINDOW_MS} makes it 7 d"
                )

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()
        elif not (self.appended or self.deduped):
            return
        said = f"nothing was appended to {self._topic}"
        if self.appended:
            more = f" to #{self.last_seq:,}" if self.last_seq > self.first_seq else ""
            said = f"appended {counted(self.appended)} to {self._topic} (#{self.first_seq:,}{more})"
        if self.deduped:
            said += f", {counted(self.deduped)} there already"
        if kind is not None:
            said += ", then stopped" + ("" if self._keys is None else "; run it again to go on")
        self._shell.say(said)
        if self._shell.is_json and kind is None:
            counts = ("appended", "deduped", "first_seq", "last_seq")
            told = {name: getattr(self, name) for name in counts}
            self._shell.emit({"topic": self._topic, **told})


def counted(records: int) -> str:
    """``1 record``, ``12,000 records``."""
    return f"{records:,} record{'' if records == 1 else 's'}"
