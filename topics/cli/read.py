"""The commands read and tail: write records to stdout, with lost ranges at their positions among
the records.

read      pages of each topic, forwards or backwards, up to the head at the start of the command
read -f   --.
tail      --+--> a thread per event stream --> one queue --> `Output`
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase, translate
from itertools import chain, groupby, islice
from queue import Empty, Queue
from threading import Thread
from time import sleep
from typing import Any, Final

import click
import msgspec

from topics.cli import units
from topics.cli.completing import TOPIC
from topics.cli.loading import reached
from topics.cli.shell import Failed, Shell, command, has_colours, pass_shell
from topics.client import (
    TAIL,
    ConnectionLost,
    Event,
    Record,
    Throttled,
    Tombstone,
    TopicDeleted,
    Topics,
    TopicState,
    Unavailable,
    calls,
)
from topics.client.watching import CURSOR_PREFIX, Start
from topics.errors import ExitCode

STREAM_TOPICS: Final = 64  # the server's limit for one stream
QUEUED_EVENTS: Final = 256
WAIT_S: Final = 0.5
SCAN_INTERVAL_S: Final = 2.0  # interval between scans for new topics that match a glob
GLOB: Final = re.compile(r"[*?\[]")
FIELDS: Final[dict[str, Callable[[Record], str]]] = {
    "t": lambda record: record.topic,
    "s": lambda record: str(record.seq),
    "d": lambda record: _text(record.raw_data),
    "g": lambda record: record.tag or "",
    "n": lambda record: record.node or "",
    "m": lambda record: _text(record.raw_meta),
    "T": lambda record: str(record.ts),
    "I": lambda record: units.iso(record.ts),
    "%": lambda _: "%",
}
FORM_HELP = "json (default in a pipe), data, or a text with %t topic, %s seq, %d data, %g tag,"
FORM_HELP += " %n node, %m meta, %T time in ms, %I time in ISO 8601."


def _tags(_: object, _parameter: object, values: tuple[str, ...]) -> re.Pattern[str] | None:
    if not all(value.startswith("tag=") for value in values):
        raise click.BadParameter("must be tag=GLOB, for example tag='eu:*'")
    return re.compile("|".join(translate(value[4:]) for value in values)) if values else None


OPTIONS: Final[list[click.Parameter]] = [
    click.Argument(["topics"], metavar="TOPIC...", nargs=-1, required=True, type=TOPIC),
    click.Option(["--where", "tags"], metavar="tag=GLOB", multiple=True, callback=_tags,
                 help="Only records with a matching tag. May be repeated."),
    click.Option(["--format", "form"], metavar="FORM", help=FORM_HELP),
    click.Option(["--fail-on-loss"], is_flag=True,
                 help="Stop with exit code 1 at the first lost range."),
]  # fmt: skip
"""Parameters of both commands."""


@command("read", params=[*OPTIONS])
@click.option("--from", "first", type=int, metavar="N", help="Start at #N; -N: the last N.")
@click.option("--since", type=units.TIME, metavar="TIME", help="Start at an age (10m) or a date.")
@click.option("--until", type=units.TIME, metavar="TIME", help="End before a time.")
@click.option("--reverse", is_flag=True, help="Newest records first.")
@click.option("-n", "--count", type=click.IntRange(1), help="Stop after this number of records.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new records.")
@pass_shell
def read(
    shell: Shell,
    /,
    topics: tuple[str, ...],
    first: int | None,
    since: datetime | None,
    until: datetime | None,
    reverse: bool,
    count: int | None,
    follow: bool,
    **shape: Any,
) -> None:
    """Read records from topics.

    \b
    topics read orders -n 10
    topics read orders --since 10m --where 'tag=eu:*' --format data | jq .total
    topics read orders --from -100 -f
    topics read orders --since 2026-11-25 --until 2026-11-26 --format '%I %d'

    By default, all existing records are read topic by topic, oldest first. TOPIC may be a glob.
    TIME is an age (10m), or a date with an optional time in ISO 8601. Without an offset, it is
    local time. Records that were lost before they were read are shown as a line in their place:
    {"tombstone": ...} in JSON, "-- lost #2 to #40 (cap) --" as text. The deletion of a topic is
    shown in the same way.

    After a server restart, the command continues without missing or repeating a record. With -f,
    press Ctrl-C to stop (exit code 130).
    """
    if first is not None and since is not None:
        raise click.UsageError("--from and --since exclude each other")
    if follow and (until is not None or reverse):
        raise click.UsageError("-f reads new records, which --until and --reverse exclude")
    output = Output(shell, count, **shape)
    with reached(shell) as client:
        states = [_ended(client, state, until) for state in states_of(client, topics)]
        output.is_named = len(states) > 1
        starts: dict[str, int] = {
            state.name: _start(shell, client, state, first, since) for state in states
        }
        if follow:
            _follow(shell, client, topics, starts, output)
            return
        get = _backwards if reverse else pages
        limit = None if shape["tags"] else count
        every = (get(shell, client, state, starts[state.name], limit) for state in states)
        for events in chain.from_iterable(every):
            output.show(events)
            if output.is_full:
                break
        if not output.shown:
            shell.print_note(f"no matching records in {', '.join(starts)}")


@command("tail", params=[*OPTIONS])
@click.option(
    "-n",
    "--last",
    type=click.IntRange(0),
    default=0,
    help="Start with the last N records of each topic.",
)
@pass_shell
def tail(shell: Shell, /, topics: tuple[str, ...], last: int, **shape: Any) -> None:
    """Follow new records.

    \b
    topics tail orders
    topics tail 'orders*' -n 10

    A glob also matches topics that are created later. They are shown within 2 seconds, starting
    with their first record. Lost records are shown as a line in their place, as in topics read.
    After a server restart, the command continues. Press Ctrl-C to stop (exit code 130).
    """
    output = Output(shell, None, **shape)
    with reached(shell) as client:
        names = _names_of(client, topics)
        if not names:
            shell.print_note(f"no topic matches {' '.join(topics)} yet")
        output.is_named = len(names) != 1 or names[0] not in topics
        starts: dict[str, Start] = dict.fromkeys(names, TAIL)
        if last:
            states = [client.topic(name).state() for name in names]
            starts = {state.name: _start(shell, client, state, -last, None) for state in states}
        _follow(shell, client, topics, starts, output)


def pages(
    shell: Shell, client: Topics, state: TopicState, after: int = 0, limit: int | None = None
) -> Iterator[list[Event]]:
    """Yield the events of a topic after a seq, page by page, up to the head of ``state``."""
    head, reading = state.head_seq, calls.Reading(state.name, after, limit, None, follow=False)
    while reading.seq < head and not reading.is_done:
        events = reading.take(client.call(reading.call()))
        shell.report_reconnected()
        yield [each for each in events if not isinstance(each, Record) or each.seq <= head]


def _backwards(
    shell: Shell, client: Topics, state: TopicState, after: int, limit: int | None
) -> Iterator[list[Event]]:
    """Yield the events of a topic after a seq, newest first, by windows of seqs.

    The window grows while it contains no records, because ranges of seqs may have been deleted or
    lost. It shrinks when records are found.
    """
    size = least = min(limit or calls.PAGE, calls.PAGE)
    high, end = state.head_seq, max(after, state.earliest_seq - 1)
    lost: list[Event] = []  # the lost range at the start of the last window
    while high > end:
        low = max(high - size, end)
        window = msgspec.structs.replace(state, head_seq=high)
        if size > least and _records(pages(shell, client, window, low, 1)):
            size = max(size // 2, least)
            continue
        found = [*chain.from_iterable(pages(shell, client, window, low, high - low))]
        # A lost range that starts before the last window is found again, with more seqs.
        if _ends(lost) - _ends(found):
            yield lost
        lost = found[:1] if found and isinstance(found[0], Tombstone) else []
        for _, events in groupby(reversed(found[len(lost) :]), type):
            yield [*events]
        size, high = size if _records([found]) else 2 * size, low
    if after < end:  # records before the first one may have been lost
        first = next(pages(shell, client, state, after, 1), [])
        lost = [each for each in first if not isinstance(each, Record)]
    yield lost


def _records(found: Iterable[list[Event]]) -> list[Record]:
    return [each for each in chain.from_iterable(found) if isinstance(each, Record)]


def _ends(events: list[Event]) -> set[int]:
    """Return the last seqs of the lost ranges."""
    return {each.gap_to for each in events if isinstance(each, Tombstone)}


def states_of(client: Topics, names: Iterable[str]) -> list[TopicState]:
    """Return the topics that match names and globs. Raise `Failed` if there are none."""
    found = _names_of(client, names)
    if not found:
        raise Failed(f"no topic matches {' '.join(names)}", "topic_not_found", ExitCode.NOT_FOUND)
    return [client.topic(name).state() for name in found]


def _names_of(client: Topics, names: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        if not GLOB.search(name):
            found[name] = None
            continue
        for info in client.topics(GLOB.split(name)[0]):
            is_other = info.name.startswith(CURSOR_PREFIX) and not name.startswith(CURSOR_PREFIX)
            if fnmatchcase(info.name, name) and not is_other:
                found[info.name] = None
    return [*found]


def _ended(client: Topics, state: TopicState, until: datetime | None) -> TopicState:
    """Return a state whose head is the last record before ``until``."""
    if until is None:
        return state
    last = min(client.topic(state.name).since(until), state.head_seq)
    return msgspec.structs.replace(state, head_seq=last)


def _start(
    shell: Shell, client: Topics, state: TopicState, first: int | None, since: datetime | None
) -> int:
    """Return the seq after which to start."""
    if since is not None:
        return client.topic(state.name).since(since)
    if first is not None and first < 0:
        # Seqs may have been deleted or lost. Do not report a loss before the last records.
        found = (_records([events]) for events in _backwards(shell, client, state, 0, -first))
        records = chain.from_iterable(found)
        oldest = next(islice(records, -first - 1, None), None)
        return (oldest.seq if oldest else state.earliest_seq) - 1
    return max(min((first or 1) - 1, state.head_seq), 0)


def _follow(
    shell: Shell,
    client: Topics,
    names: Iterable[str],
    starts: Mapping[str, Start],
    output: Output,
) -> None:
    """Show events until the output is complete. Raise `Failed` if all topics are deleted."""
    globs = [name for name in names if GLOB.search(name)]
    streams = EventStreams(client, starts, globs)
    try:
        while streams.topics or globs:
            event = streams.next()
            if isinstance(event, Exception):
                raise event
            shell.report_reconnected()
            output.show([event])
            if streams.queue.empty():
                output.flush()
            if output.is_full:
                return
            if isinstance(event, TopicDeleted):
                streams.topics.discard(event.topic)
        raise Failed("all topics are deleted", "topic_not_found", ExitCode.NOT_FOUND)
    finally:
        shell.is_quiet = True  # the streams break when the command ends


class EventStreams:
    """Receives the events of many topics. Each group of `STREAM_TOPICS` topics has a stream and a
    thread, and so do new topics that match a glob.
    """

    def __init__(self, client: Topics, starts: Mapping[str, Start], globs: list[str]) -> None:
        self._client, self._globs = client, globs
        self.queue: Queue[Event | Exception] = Queue(QUEUED_EVENTS)
        self.topics: set[str] = set()
        self._begin([*starts.items()])
        if globs:
            self._start(self._scan)

    def next(self) -> Event | Exception:
        """Return the next event, or the error that ended a stream."""
        while True:
            # Each wait is short, because a signal just before a wait is handled only after it.
            with suppress(Empty):
                return self.queue.get(timeout=WAIT_S)

    def _begin(self, starts: list[tuple[str, Start]]) -> None:
        self.topics.update(name for name, _ in starts)
        for at in range(0, len(starts), STREAM_TOPICS):
            self._start(self._stream, starts[at : at + STREAM_TOPICS])

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            try:
                run(*arguments)
            except Exception as error:
                self.queue.put(error)

        Thread(target=guarded, daemon=True).start()

    def _stream(self, starts: list[tuple[str, Start]]) -> None:
        for event in self._client.watch(*starts):
            self.queue.put(event)

    def _scan(self) -> None:
        while True:
            sleep(SCAN_INTERVAL_S)
            with suppress(ConnectionLost, Throttled, Unavailable):  # the streams also report it
                found = _names_of(self._client, self._globs)
                self._begin([(name, 0) for name in found if name not in self.topics])


class Output:
    """Writes events to stdout, with at most ``left`` records. If ``is_named`` is true, their topics
    are written as well.
    """

    def __init__(
        self,
        shell: Shell,
        left: int | None,
        *,
        tags: re.Pattern[str] | None,
        form: str | None,
        fail_on_loss: bool,
    ) -> None:
        self.left, self._tags, self._fails, self.is_named = left, tags, fail_on_loss, False
        self._out, self.shown = sys.stdout.buffer, 0
        self._style: Callable[..., str] = click.style if has_colours() else _unstyled
        if form is None and (shell.is_json or not sys.stdout.isatty()):
            form = "json"
        self._is_json = form == "json"
        self._write = self._for_terminal if form is None else _template(form)

    @property
    def is_full(self) -> bool:
        """Whether the record limit has been reached."""
        return self.left == 0

    def show(self, events: list[Event]) -> None:
        """Write the events of a page, beginning with its lost ranges. With --fail-on-loss, raise
        `Failed` if a range was lost.
        """
        for event in events:
            if isinstance(event, Tombstone | TopicDeleted):
                self._note(event)
        records = [each for each in events if isinstance(each, Record) and self._fits(each)]
        records = records[: self.left]
        if self.left is not None:
            self.left -= len(records)
        self.shown += len(records)
        self._out.write(self._write(records))

    def _fits(self, record: Record) -> bool:
        return self._tags is None or bool(record.tag and self._tags.match(record.tag))

    def flush(self) -> None:
        """Write buffered output."""
        self._out.flush()

    def _note(self, event: Tombstone | TopicDeleted) -> None:
        self.shown += 1
        kind, what = "topic_deleted", "topic deleted"
        if isinstance(event, Tombstone):
            kind, what = "tombstone", f"lost #{event.gap_from} to #{event.gap_to} ({event.reason})"
        if self._is_json:
            line = msgspec.json.encode({kind: event})
        else:
            line = f"-- {f'{event.topic}: ' if self.is_named else ''}{what} --".encode()
        self._out.write(line + b"\n")
        if kind == "tombstone" and self._fails:
            raise Failed(f"{event.topic}: {what}", "records_lost")

    def _for_terminal(self, records: list[Record]) -> bytes:
        return "".join(map(self._line, records)).encode()

    def _line(self, record: Record) -> str:
        parts = [self._style(units.local_time(record.ts), dim=True)]
        if self.is_named:
            parts.append(self._style(record.topic, fg="cyan"))
        parts.append(self._style(f"#{record.seq}", dim=True))
        if record.tag is not None:
            parts.append(self._style(units.printable(record.tag), fg="yellow"))
        return "  ".join([*parts, units.printable(_text(record.raw_data))]) + "\n"


def json_lines(records: list[Record]) -> bytes:
    """Return each record as a line of JSON."""
    lines = msgspec.json.Encoder().encode_lines(records)
    if lines.count(b"\n") == len(records):
        return lines
    # Payloads keep their whitespace, so a value may contain line breaks between its tokens.
    table = bytes.maketrans(b"\r\n", b"  ")
    return b"".join(msgspec.json.encode(each).translate(table) + b"\n" for each in records)


def _unstyled(text: str, **_: object) -> str:
    return text


def _text(raw: msgspec.Raw) -> str:
    """Return JSON as one line."""
    return bytes(raw).decode().replace("\n", " ").replace("\r", " ")


def _template(form: str) -> Callable[[list[Record]], bytes]:
    """Return a function that formats records. A line break is added to a template without one."""
    if form == "json":
        return json_lines
    form = "%d" if form == "data" else form
    if "%" not in form or not FIELDS.keys() >= {*re.findall("%(.?)", form)}:
        what = f"{form!r} must be json, data, or a text with %{' %'.join(FIELDS)}"
        raise click.BadParameter(what, param_hint="--format")
    text = form.replace("\\n", "\n").replace("\\t", "\t").removesuffix("\n") + "\n"

    def line(record: Record) -> str:
        return re.sub("%(.)", lambda found: FIELDS[found[1]](record), text)

    return lambda records: "".join(map(line, records)).encode()
