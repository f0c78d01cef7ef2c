"""The commands export and import: write topics as JSON lines, and append them again.

    {"header": {"format": 1, "topic": "orders", "epoch": 1, "config": {...}}}
    {"topic": "orders", "$seq": 1, "$ts": 1795647769660, "$tag": "eu", "data": {"sku": "A1"}}
    {"tombstone": {"topic": "orders", "gap_from": 2, "gap_to": 3, ...}}
    ... the same for each topic ...
    {"footer": {"topics": {"orders": 1}, "sha256": "..."}}

The checksum covers all bytes before the footer. If a file is truncated or was changed, none of
its records are appended.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from topics.cli import units
from topics.cli.completing import TOPIC
from topics.cli.loading import (
    INPUT,
    Lines,
    Loader,
    blocks,
    invalid_input,
    opened,
    reached,
    tracked,
)
from topics.cli.read import json_lines, pages, states_of
from topics.cli.shell import Failed, Shell, command, pass_shell
from topics.client import NotFound, Record, Topics, TopicState, calls
from topics.errors import ExitCode
from topics.formats.api.topic_config import TopicConfigPatch

HEADER: Final = b'{"header":{"format":1,'
DAMAGED: Final = "the export is truncated or was changed"
GZIP: Final = b"\x1f\x8b"
NOTHING: Final = msgspec.Raw()


class Header(msgspec.Struct):
    """The start of a topic. ``epoch`` is the incarnation that was exported."""

    topic: str
    config: dict[str, Any]
    epoch: int = 0


class Line(msgspec.Struct):
    """A line: a header, a footer, a record with ``data``, or a tombstone."""

    header: Header | None = None
    footer: dict[str, Any] | None = None
    data: msgspec.Raw = NOTHING
    tag: str | None = msgspec.field(name="$tag", default=None)
    node: str | None = msgspec.field(name="$node", default=None)
    meta: msgspec.Raw = NOTHING


_decode, _encode = msgspec.json.Decoder(Line).decode, msgspec.json.encode


@command("export")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="The output file (stdout).")
@click.option("--gzip", "is_gzip", is_flag=True, help="Compress the output (default for FILE.gz).")
@pass_shell
def export(shell: Shell, /, topics: tuple[str, ...], output: str | None, is_gzip: bool) -> None:
    """Write topics to a file.

    \b
    topics export orders 'log*' -o backup.ndjson.gz

    The file has a JSON line for each record, in the form that topics read prints, and for each
    range of lost records. Each topic starts with its config, and the file ends with a checksum.
    Records that are appended after the export has started are not exported. The file is named
    FILE.part until it is complete.

    Jobs of a queue are exported as records, without leases, delivery counts and delays.
    """
    with reached(shell) as client:
        states = states_of(client, topics)
        if output is None:
            return _export(shell, client, states, sys.stdout.buffer, is_gzip)
        is_gzip = is_gzip or output.endswith(".gz")
        file = Path(output).resolve()
        if file.exists() and not file.is_file():  # a device or a pipe must not be replaced
            with file.open("wb") as out:
                return _export(shell, client, states, out, is_gzip)
        part = Path(f"{file}.part")
        try:
            with part.open("wb") as out:
                _export(shell, client, states, out, is_gzip)
                os.fsync(out.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)


@command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=INPUT)
@click.option("--to", metavar="TOPIC", type=TOPIC, help="Append all records to this topic.")
@click.option("--again", is_flag=True, help="Append even records that have been appended before.")
@pass_shell
def import_(shell: Shell, /, files: tuple[str, ...], to: str | None, again: bool) -> None:
    """Append the records from an export.

    \b
    topics import backup.ndjson.gz

    Topics that do not exist are created with the exported config. Records keep their data, tag,
    node and meta, and get new seqs and times. All FILEs are checked before the first append, except
    stdin (-), whose check is complete only when all of it has been read.

    An import may be repeated, or continued after an interruption, without appending a record twice.
    This holds while the topic stores the keys of the import (idempotency_window_ms: at least 7 days
    if this command creates the topic), even if the records have been deleted. An export is not
    imported into the topic from which it was made. --again appends the records in both cases.
    """
    headers = [header for file in files if file != "-" for header in _headers(file)]
    with reached(shell) as client:
        for header in () if again else headers:
            _check_not_source(client, header, to)
        for file in files:
            with opened(shell, file) as found:
                _append(shell, client, _content(file, found), to, again=again)


def _export(
    shell: Shell, client: Topics, states: list[TopicState], out: IO[bytes], is_gzip: bool
) -> None:
    """Write the topics, and report their number of records."""
    digest, counts = hashlib.sha256(), {state.name: 0 for state in states}

    def texts() -> Iterator[bytes]:
        for state in states:
            header = {"format": 1, "topic": state.name, "epoch": state.epoch}
            yield _encode({"header": {**header, "config": state.config}}) + b"\n"
            for events in pages(shell, client, state):
                records = [each for each in events if isinstance(each, Record)]
                if len(records) < len(events):
                    yield _encode({"tombstone": events[0]}) + b"\n"
                counts[state.name] += len(records)
                yield json_lines(records)

    steps = sum(state.count for state in states) // calls.PAGE
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) if is_gzip else nullcontext(out) as packed,
        tracked(shell, texts(), steps) as found,
    ):
        for text in found:
            digest.update(text)
            packed.write(text)
        footer = {"topics": counts, "sha256": digest.hexdigest()}
        packed.write(_encode({"footer": footer}) + b"\n")
    out.flush()
    shell.print_note(f"exported {units.counted(sum(counts.values()))} of {', '.join(counts)}")
    if shell.is_json and out is not sys.stdout.buffer:
        shell.emit(footer)


def _headers(file: str) -> list[Header]:
    """Return the headers of a complete export. Raise `Failed`."""
    with click.open_file(file, "rb") as stream:
        lines = [each for each in _content(file, blocks(stream)) if each[0].startswith(HEADER)]
    return [header for line in lines if (header := _decoded(*line).header) is not None]


def _decoded(line: bytes, location: str) -> Line:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        raise Failed(f"{location}: {DAMAGED}", "damaged_export") from None


def _check_not_source(client: Topics, header: Header, to: str | None) -> None:
    """Raise `Failed` if the records would be appended to the topic that was exported."""
    name = to or header.topic
    with suppress(NotFound):
        if name == header.topic and client.topic(name).state().epoch == header.epoch:
            raise Failed(
                f"{name} is the topic that was exported, so the import would duplicate its records;"
                " --to selects a different topic, --again appends them anyway",
                "own_export",
                ExitCode.USAGE,
            )


def _append(
    shell: Shell,
    client: Topics,
    content: Iterator[tuple[bytes, str]],
    to: str | None,
    *,
    again: bool,
) -> None:
    """Append all records from an export."""
    with ExitStack() as stack:
        for line, location in content:
            found = _decoded(line, location)
            if found.header is not None:
                stack.close()  # completes the previous topic
                if not again:
                    _check_not_source(client, found.header, to)
                known = TopicConfigPatch.__struct_fields__
                config = {key: each for key, each in found.header.config.items() if key in known}
                prefix = None if again else ""
                loader = Loader(shell, client, to or found.header.topic, prefix, config=config)
                stack.enter_context(loader).open()
            elif found.data is not NOTHING:
                sent = {"data": found.data, "tag": found.tag, "node": found.node}
                if found.meta is not NOTHING:
                    sent["meta"] = found.meta
                loader.add(_encode(sent), location, line)


def _content(name: str, found: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    """Yield the lines of an export without its footer, and their locations. Raise `Failed` at the
    end if it is truncated or was changed.
    """
    digest, last, location = hashlib.sha256(), b"", ""
    lines = Lines(_unpacked(found), name)
    try:
        for line in lines:
            if location:
                digest.update(last + b"\n")
                yield last, location
            elif not line.startswith(HEADER):
                raise invalid_input(name, "not an export of topics")
            last, location = line, lines.location
        footer = _decode(last).footer
    except (zlib.error, msgspec.DecodeError):
        footer = None
    if footer is None or footer.get("sha256") != digest.hexdigest():
        raise Failed(f"{name}: {DAMAGED}", "damaged_export")


def _unpacked(found: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of bytes, decompressed if they are compressed."""
    unpack: Any = None
    for number, block in enumerate(found):
        if number == 0 and block.startswith(GZIP):
            unpack = zlib.decompressobj(31)
        # Also yield data after the end of the gzip stream, so that the file is reported as damaged.
        # No export contains such data.
        yield unpack.decompress(block) + unpack.unused_data if unpack else block
