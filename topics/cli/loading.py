"""Loading: appends many records to one topic in requests of a bounded size.

    blocks of a file --> `Lines` --> records --> `Loader.add` --> chunks --> appends

Equal input makes equal chunks and idempotency keys (`topics.client.chunks`). So a second run
appends nothing, and a run after an interruption continues. A chunk is sent when it is full or at
the end of the input. After a bad line, an incomplete chunk is sent only if there are no keys. With
keys, it is not sent, because a corrected line must not move the bounds of the chunks before it.
"""

from __future__ import annotations

import io
import select
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, TypeVar

import click
from msgspec import Raw

from topics.cli import units
from topics.cli.shell import Failed, Shell
from topics.client import Invalid, NotFound, Refused, Topics, Unavailable, calls
from topics.client.chunks import Chunk, Chunker, ContentKeys, run_key
from topics.errors import ExitCode

T = TypeVar("T")
INPUT: Final = click.Path(exists=True, dir_okay=False, allow_dash=True)

CHUNK_RECORDS: Final = 1000
CHUNK_BYTES: Final = 1 << 20
LINE_MAX_BYTES: Final = 64 << 20  # the default limit of a request body
BLOCK_BYTES: Final = 1 << 18
REPORTED_REJECTS_MAX: Final = 5
LINGER_S: Final = 0.05
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
WINDOW: Final = "idempotency_window_ms"
# This is long enough to repeat a load on Monday that failed on Friday.
WINDOW_MS: Final = 7 * units.MS["d"]


def reached(shell: Shell) -> Topics:
    """Check that the server responds, so that a wrong address is reported immediately. Return a
    client that retries. Raise `TopicsError`.
    """
    client = shell.client(retries=True)
    if shell.timeout is None:
        with suppress(Unavailable):  # the server is starting, or one of its shards is unavailable
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
    """Open a file, or stdin (``-``), as blocks. A terminal shows the progress of a file."""
    total = 0 if file == "-" else Path(file).stat().st_size // BLOCK_BYTES
    with (
        click.open_file(file, "rb") as stream,
        tracked(shell, blocks(stream, on_idle), total) as found,
    ):
        yield found


def invalid_input(location: str, reason: str) -> Failed:
    """Return the error for invalid input at ``location``."""
    return Failed(f"{location}: {reason}", "bad_input", ExitCode.USAGE)


def blocks(stream: IO[bytes], on_idle: Callable[[], None] | None = None) -> Iterator[bytes]:
    """Yield the contents of a stream as they are received. ``on_idle`` is called while no data is
    available.
    """
    while True:
        with suppress(io.UnsupportedOperation):  # the stream has no descriptor, so it never waits
            while on_idle is not None and not select.select([stream], [], [], LINGER_S)[0]:
                on_idle()
        if not (block := stream.read1(BLOCK_BYTES)):  # type: ignore[attr-defined]
            return
        yield block


class Lines:
    """Iterates over lines without their line ends and without a byte order mark. ``location`` names
    the line that was yielded last.
    """

    def __init__(self, blocks: Iterable[bytes], name: str) -> None:
        self._blocks, self._name, self._number = blocks, name, 0

    @property
    def location(self) -> str:
        """The name of the input and the number of the last line, for messages."""
        return f"{self._name}, line {self._number}"

    def __iter__(self) -> Iterator[bytes]:
        incomplete = bytearray()
        for block in self._blocks:
            first, *others = block.split(b"\n")
            incomplete += first
            if len(incomplete) > LINE_MAX_BYTES:
                limit = units.size(LINE_MAX_BYTES)
                raise invalid_input(self.location, f"the next line is longer than {limit}")
            if others:
                *complete, rest = others
                for line in (bytes(incomplete), *complete):
                    yield self._numbered(line)
                incomplete = bytearray(rest)
        if incomplete:
            yield self._numbered(bytes(incomplete))

    def _numbered(self, line: bytes) -> bytes:
        self._number += 1
        return line.removeprefix(BYTE_ORDER_MARK) if self._number == 1 else line


class InputRecord(NamedTuple):
    """A record to append. ``location`` is its line in the input, and ``line`` is the content of
    this line. Its key is derived from ``origin``.
    """

    record: bytes
    location: str
    origin: bytes
    line: bytes


class Rejects:
    """Skips bad lines: counts them, reports the first ones, and writes all of them to a file if
    there is one. ``head`` is written before the first line.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell, self.head, self.count = shell, b"", 0
        self._file: IO[bytes] | None = None

    @contextmanager
    def written(self, path: str) -> Iterator[None]:
        """Write the skipped lines to a file, which is replaced. Raise `OSError`."""
        with Path(path).open("wb") as self._file:
            yield

    def add(self, line: bytes, location: str, reason: str) -> None:
        """Skip a line."""
        if self._file is not None:
            is_first = self.count == 0 and self.head
            self._file.write((self.head + b"\n" if is_first else b"") + line + b"\n")
        self.count += 1
        if self.count <= REPORTED_REJECTS_MAX:
            self._shell.print_note(f"skipped {location}: {reason}")


class Loader:
    """Appends to one topic.

    ``prefix`` is the prefix of the keys that are derived from contents; ``key`` is the key of the
    first chunk. If both are absent, equal input is appended again in each run. ``config`` is used
    if the topic must be created. ``hint`` describes how to append known records again. ``rejects``
    collects the records that the server refuses; if it is absent, the first refused record stops
    the load.
    """

    def __init__(
        self,
        shell: Shell,
        client: Topics,
        topic: str,
        prefix: str | None,
        *,
        key: str | None = None,
        config: Mapping[str, Any] = {},
        hint: str = "--again appends them again",
        rejects: Rejects | None = None,
    ) -> None:
        self._shell, self._client, self._topic, self._config = shell, client, topic, config
        self._chunker = Chunker[InputRecord](CHUNK_RECORDS, CHUNK_BYTES)
        self._keys = None if prefix is None else ContentKeys(prefix)
        self._key, self._hint, self._rejects = key, hint, rejects
        self._is_keyed = prefix is not None or key is not None
        self._is_open = prefix is None and not config
        self._unsent = 0
        self.appended = self.deduped = self.first_seq = self.last_seq = 0

    def add(
        self, record: bytes, location: str, origin: bytes | None = None, line: bytes = b""
    ) -> None:
        """Append a record (§2), immediately if it completes a chunk. See `InputRecord`."""
        self._unsent += 1
        for chunk in self._chunker.add(
            record, InputRecord(record, location, origin or record, line)
        ):
            self._append(chunk)

    def flush(self) -> None:
        """Append the incomplete chunk. Raise `TopicsError`."""
        for chunk in self._chunker.flush():
            self._append(chunk)

    def _append(self, chunk: Chunk[InputRecord]) -> None:
        """Append those records of a chunk that the server accepts."""
        self.open()
        key, records, inputs = self._key_of(chunk), chunk.records, [*chunk.marks]
        refused = 0
        while inputs:
            # The derived key is the same in the next run, because the server refuses the same
            # records again.
            its_key = f"{key}-{refused}" if refused and key != calls.AUTO else key
            try:
                self._send(records, its_key)
                return
            except Invalid as error:
                if "index" not in error.detail:
                    raise
                index = error.detail["index"]
                if self._rejects is None:
                    if key == calls.AUTO and index:
                        self._send(_array(inputs[:index]), key)
                    raise invalid_input(inputs[index].location, error.message) from None
                item = inputs.pop(index)
                self._rejects.add(item.line, item.location, error.message)
                self._unsent -= 1
                refused, records = refused + 1, _array(inputs)

    def _key_of(self, chunk: Chunk[InputRecord]) -> str:
        if self._keys is not None:
            return self._keys.key(item.origin for item in chunk.marks)
        if self._key is not None:
            return run_key(self._key, chunk) if chunk.number else self._key
        return calls.AUTO

    def _send(self, records: bytes, key: str) -> None:
        """Append records with one request. Raise `TopicsError`."""
        receipt = self._client.call(calls.append(self._topic, {"records": Raw(records)}, key))
        self._shell.report_reconnected()
        if receipt.created:
            self._shell.print_note(f"created topic {self._topic}")
        self._unsent -= receipt.count
        if receipt.deduped:
            self.deduped += receipt.count
        else:
            self.appended += receipt.count
            self.first_seq, self.last_seq = self.first_seq or receipt.first_seq, receipt.last_seq

    def open(self) -> None:
        """Create the topic with an idempotency window that is long enough for repeated runs. Warn
        if an existing topic has a shorter window. Raise `TopicsError`.
        """
        if self._is_open:
            return
        self._is_open, name, print_note = True, self._topic, self._shell.print_note
        config = self._config
        # If the API key has only the scope write, append without this check. However, report the
        # refusal if a config must be applied.
        with suppress(*() if config else (Refused,)):
            try:
                window_ms = self._client.topic(name).state().config[WINDOW]
            except NotFound:
                window_ms = max(config.get(WINDOW, 0), WINDOW_MS)
                self._client.call(calls.put_topic(name, {**config, WINDOW: window_ms}))
                print_note(f"created topic {name}, which recognizes repeated records for 7 days")
            if self._keys is not None and window_ms < units.MS["h"]:
                print_note(
                    f"{name} recognizes repeated records only for {units.duration(window_ms)}, so a"
                    f" later run appends them again; topics config {name} {WINDOW}=7d prevents this"
                )

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        try:
            if error is None or (not self._is_keyed and _is_invalid_input(error)):
                self.flush()
        except BaseException as failure:
            error = failure
            raise
        finally:
            is_wrong = isinstance(error, Invalid) or _is_invalid_input(error)
            if error is None or is_wrong or self.appended or self.deduped:
                self._report(is_complete=error is None)

    def _report(self, *, is_complete: bool) -> None:
        """Report the result of the load, as text and as JSON."""
        text = f"nothing was appended to {self._topic}"
        if self.appended:
            more = f" to #{self.last_seq:,}" if self.last_seq > self.first_seq else ""
            seqs = f"#{self.first_seq:,}{more}"
            text = f"appended {units.counted(self.appended)} to {self._topic} ({seqs})"
        if self.deduped:
            text += f"; {units.counted(self.deduped)} appended before"
            text += "" if self.appended else f", {self._hint}"
        skipped = self._rejects.count if self._rejects else 0
        if skipped:
            text += f"; skipped {units.counted(skipped)}"
        if not is_complete:
            text += "; stopped"
            if self._is_keyed:
                text += ", run the command again to continue"
            elif self._unsent:
                text += f", {units.counted(self._unsent)} read and not appended"
        self._shell.print_note(text)
        if self._shell.is_json and is_complete:
            counts = ("appended", "deduped", "first_seq", "last_seq")
            members = {name: getattr(self, name) for name in counts}
            self._shell.emit({"topic": self._topic, **members, "skipped": skipped})


def _is_invalid_input(error: BaseException | None) -> bool:
    return isinstance(error, Failed) and error.code == "bad_input"


def _array(inputs: list[InputRecord]) -> bytes:
    """Return the records as a JSON array."""
    return b"[" + b",".join([item.record for item in inputs]) + b"]"
