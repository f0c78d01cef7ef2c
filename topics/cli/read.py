"""read and tail: records on stdout, and what was lost in its place among them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from fnmatch import fnmatchcase, translate
from itertools import chain
from queue import Empty, Queue
from threading import Thread
from time import sleep, time
from typing import Any, Final

import click
import msgspec

from topics.cli import units
from topics.cli.loading import reached
from topics.cli.shell import Failed, Shell, command, pass_shell
from topics.client import TAIL, Event, Record, Tombstone, TopicDeleted, Topics, TopicState, calls
from topics.client.watching import CURSOR_PREFIX, Start
from topics.errors import ExitCode

STREAM_TOPICS: Final = 64  # that one stream may have
QUEUED_EVENTS: Final = 256
WAIT_S: Final = 0.5
LOOK_EVERY_S: Final = 2.0  # for topics that a glob matches
GLOB: Final = re.compile(r"[*?\[]")
FIELDS: Final[dict[str, Callable[[Record], str]]] = {
    "t": lambda record: record.topic,
    "s": lambda record: str(record.seq),
    "d": lambda record: _text(record.raw_data),
    "g": lambda record: record.tag or "",
    "n": lambda record: record.node or "",
    "m": lambda record: _text(record.raw_meta),
    "T": lambda record: str(record.ts),
    "%": lambda _: "%",
}
FORM_HELP = "json (default in a pipe), data, or a text with %t topic, %s seq, %d data, %g tag,"
FORM_HELP += " %n node, %m meta, %T time in ms."


def _when(_: object, parameter: click.Parameter, value: str | None) -> datetime | None:
    """A time, or how long ago it is."""
    try:
        return None if value is None else datetime.fromisoformat(value).astimezone()
    except (ValueError, OverflowError):
        ago_s = units.DURATION.convert(value, parameter, None) / 1000
        return datetime.fromtimestamp(max(time() - ago_s, 0)).astimezone()


def _tags(_: object, _parameter: object, values: tuple[str, ...]) -> re.Pattern[str] | None:
    if not all(value.startswith("tag=") for value in values):
        raise click.BadParameter("must be tag=GLOB, as tag='eu:*'")
    return re.compile("|".join(translate(value[4:]) for value in values)) if values else None


OPTIONS: Final[list[click.Parameter]] = [
    click.Argument(["topics"], metavar="TOPIC...", nargs=-1, required=True),
    click.Option(["--where", "tags"], metavar="tag=GLOB", multiple=True, callback=_tags,
                 help="Only records with such a tag, or one of several."),
    click.Option(["--format", "form"], metavar="FORM", help=FORM_HELP),
    click.Option(["--fail-on-loss"], is_flag=True, help="End with 1 where records are lost."),
]  # fmt: skip
"""Of both commands."""


@command("read", params=[*OPTIONS])
@click.option("--from", "first", type=int, metavar="N", help="Begin at #N; -N: the last N.")
@click.option("--since", callback=_when, metavar="TIME", help="Begin 10m ago, or at a date.")
@click.option("-n", "--count", type=click.IntRange(1), help="End with so many records.")
@click.option("-f", "--follow", is_flag=True, help="Go on with records that come.")
@pass_shell
def read(
    shell: Shell,
    /,
    topics: tuple[str, ...],
    first: int | None,
    since: datetime | None,
    count: int | None,
    follow: bool,
    **shape: Any,
) -> None:
    """Read records of topics.

    \b
    topics read orders -n 10
    topics read orders --since 10m --where 'tag=eu:*' --format data | jq .total
    topics read orders --from -100 -f

    All that is there, the oldest first, one topic after the other; TOPIC may be a glob. Records
    that were lost before they were read are a line in their place: {"tombstone": ...} in JSON,
    "-- lost #2 to #40 (cap) --" as text. A topic that is deleted is one, too.

    A server that restarts is a pause: nothing is missed or read twice. With -f, Ctrl-C is the end
    (exit code 130).
    """
    if first is not None and since is not None:
        raise click.UsageError("--from or --since, not both")
    output = Output(shell, count, **shape)
    with reached(shell) as client:
        states = states_of(client, topics)
        output.is_named = len(states) > 1
        starts: dict[str, int] = {
            state.name: _start(client, state, first, since) for state in states
        }
        if follow:
            _follow(shell, client, topics, starts, output)
        every = (
            pages(shell, client, state, starts[state.name], None if shape["tags"] else output.left)
            for state in states
        )
        for events in () if follow else chain.from_iterable(every):
            output.show(events)
            if output.is_full:
                break
        if not output.shown:
            shell.say(f"no such records in {', '.join(starts)}")


@command("tail", params=[*OPTIONS])
@click.option("-n", "--last", type=click.IntRange(0), default=0, help="First the last N of each.")
@pass_shell
def tail(shell: Shell, /, topics: tuple[str, ...], last: int, **shape: Any) -> None:
    """Show records as they come.

    \b
    topics tail orders
    topics tail 'orders*' -n 10

    A glob also stands for topics that are made later: they are shown within 2 seconds, from their
    first record on. Lost records are a line in their place, as topics read has them. A server that
    restarts is a pause. Ctrl-C is the end (exit code 130).
    """
    output = Output(shell, None, **shape)
    with reached(shell) as client:
        names = _names_of(client, topics)
        if not names:
            shell.say(f"no topic matches {' '.join(topics)} yet")
        output.is_named = len(names) != 1 or names[0] not in topics
        starts: dict[str, Start] = dict.fromkeys(names, TAIL)
        if last:
            states = [client.topic(name).state() for name in names]
            starts = {state.name: _start(client, state, -last, None) for state in states}
        _follow(shell, client, topics, starts, output)


def pages(
    shell: Shell, client: Topics, state: TopicState, after: int = 0, limit: int | None = None
) -> Iterator[list[Event]]:
    """What a topic has behind a seq, up to the head of ``state``."""
    reading = calls.Reading(state.name, after, limit, None, follow=False)
    while reading.seq < state.head_seq and not reading.is_done:
        events = reading.take(client.call(reading.call()))
        shell.back()
        yield events


def states_of(client: Topics, names: Iterable[str]) -> list[TopicState]:
    """The topics that names and globs stand for. Raises `Failed` when there are none."""
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


def _start(client: Topics, state: TopicState, first: int | None, since: datetime | None) -> int:
    """The seq behind which to begin."""
    if since is not None:
        return client.topic(state.name).since(since)
    if first is not None and first < 0:  # what was lost before the last ones is not asked for
        return max(state.head_seq + first, state.earliest_seq - 1)
    return max(min((first or 1) - 1, state.head_seq), 0)


def _follow(
    shell: Shell,
    client: Topics,
    names: Iterable[str],
    starts: Mapping[str, Start],
    output: Output,
) -> None:
    """Show what comes until it is enough, or all topics are gone."""
    globs = [name for name in names if GLOB.search(name)]
    streams = Streams(client, starts, globs)
    try:
        while streams.topics or globs:
            event = streams.next()
            if isinstance(event, Exception):
                raise event
            shell.back()
            output.show([event])
            if streams.queue.empty():
                output.flush()
            if output.is_full:
                return
            if isinstance(event, TopicDeleted):
                streams.topics.discard(event.topic)
        raise Failed("all topics are deleted", "topic_not_found", ExitCode.NOT_FOUND)
    finally:
        shell.is_quiet = True  # streams that break from here on are no news


class Streams:
    """Events of many topics: a stream and a thread for each `STREAM_TOPICS` of them, and for those
    that a glob matches later.
    """

    def __init__(self, client: Topics, starts: Mapping[str, Start], globs: list[str]) -> None:
        self._client, self._globs = client, globs
        self.queue: Queue[Event | Exception] = Queue(QUEUED_EVENTS)
        self.topics: set[str] = set()
        self._begin([*starts.items()])
        if globs:
            self._start(self._look)

    def next(self) -> Event | Exception:
        """The next event, or what ends a stream."""
        while True:
            with suppress(Empty):  # Ctrl-C just before a wait is noticed behind it
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

    def _look(self) -> None:
        while True:
            sleep(LOOK_EVERY_S)
            found = _names_of(self._client, self._globs)
            self._begin([(name, 0) for name in found if name not in self.topics])


class Output:
    """Writes events to stdout, up to ``left`` records; ``is_named``: with their topics."""

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
        if form is None and (shell.is_json or not sys.stdout.isatty()):
            form = "json"
        self._is_json = form == "json"
        self._write = self._for_people if form is None else _template(form)

    @property
    def is_full(self) -> bool:
        """It has had enough."""
        return self.left == 0

    def show(self, events: list[Event]) -> None:
        """Write them: what is lost stands before the records of its page. Raises `Failed` where
        records are lost, if that is asked for.
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
        """Let the reader have it."""
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

    def _for_people(self, records: list[Record]) -> bytes:
        return "".join(map(self._line, records)).encode()

    def _line(self, record: Record) -> str:
        parts = [click.style(units.moment(record.ts), dim=True)]
        if self.is_named:
            parts.append(click.style(record.topic, fg="cyan"))
        parts.append(click.style(f"#{record.seq}", dim=True))
        if record.tag is not None:
            parts.append(click.style(units.printable(record.tag), fg="yellow"))
        return "  ".join([*parts, units.printable(_text(record.raw_data))]) + "\n"


def json_lines(records: list[Record]) -> bytes:
    """Each as a line of JSON."""
    lines = msgspec.json.Encoder().encode_lines(records)
    if lines.count(b"\n") == len(records):
        return lines
    # Line breaks between the parts of a value, as a writer has sent them.
    table = bytes.maketrans(b"\r\n", b"  ")
    return b"".join(msgspec.json.encode(each).translate(table) + b"\n" for each in records)


def _text(raw: msgspec.Raw) -> str:
    """JSON as one line."""
    return bytes(raw).decode().replace("\n", " ").replace("\r", " ")


def _template(form: str) -> Callable[[list[Record]], bytes]:
    """What writes records by a text with fields; it ends with a line break if it has none."""
    if form == "json":
        return json_lines
    form = "%d" if form == "data" else form
    if "%" not in form or not FIELDS.keys() >= {*re.findall("%(.?)", form)}:
        what = f"{form!r} is none: json, data, or a text with %{' %'.join(FIELDS)}"
        raise click.BadParameter(what, param_hint="--format")
    text = form.replace("\\n", "\n").replace("\\t", "\t").removesuffix("\n") + "\n"

    def line(record: Record) -> str:
        return re.sub("%(.)", lambda found: FIELDS[found[1]](record), text)

    return lambda records: "".join(map(line, records)).encode()
