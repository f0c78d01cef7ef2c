"""export and import: topics as lines of JSON.

    {"header": {"format": 1, "topic": "orders", "epoch": 1, "config": {...}}}
    {"topic": "orders", "$seq": 1, "$ts": 1795647769660, "$tag": "eu", "data": {"sku": "A1"}}
    {"tombstone": {"topic": "orders", "gap_from": 2, "gap_to": 3, ...}}
    ... of each topic ...
    {"footer": {"topics": {"orders": 1}, "sha256": "..."}}

The checksum is that of all bytes before the footer. Nothing of a file that is cut or changed is
appended.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import IO, Any, Final

import click
import msgspec

from topics.cli.loading import (
    INPUT,
    Lines,
    Loader,
    bad_input,
    blocks,
    counted,
    opened,
    reached,
    tracked,
)
from topics.cli.read import json_lines, pages, states_of
from topics.cli.shell import Failed, Shell, command, pass_shell
from topics.client import Record, Topics, TopicState, calls
from topics.formats.api.topic_config import TopicConfigPatch

HEADER: Final = b'{"header":{"format":1,'
DAMAGED: Final = "the export is cut or was changed"
GZIP: Final = b"\x1f\x8b"
NOTHING: Final = msgspec.Raw()


class Header(msgspec.Struct):
    """A topic begins."""

    topic: str
    config: dict[str, Any]


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
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="The file; else stdout.")
@click.option("--gzip", "is_gzip", is_flag=True, help="Compress it, as FILE.gz always is.")
@pass_shell
def export(shell: Shell, /, topics: tuple[str, ...], output: str | None, is_gzip: bool) -> None:
    """Write topics into a file.

    \b
    topics export orders 'log*' -o backup.ndjson.gz

    A line of JSON for each record, as topics read writes it, and for each range that was lost;
    before them the topic's config, behind all a checksum. It goes up to the records that are there
    at its start. FILE is there when all is written, until then it is FILE.part.

    Jobs of a queue are records. Leases, counts of deliveries and delays are not kept.
    """
    with reached(shell) as client:
        states = states_of(client, topics)
        if output is None:
            return _export(shell, client, states, sys.stdout.buffer, is_gzip)
        is_gzip = is_gzip or output.endswith(".gz")
        file = Path(output).resolve()
        if file.exists() and not file.is_file():  # a device or a pipe stays what it is
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
@click.option("--to", metavar="TOPIC", help="Append all to this topic.")
@pass_shell
def import_(shell: Shell, /, files: tuple[str, ...], to: str | None) -> None:
    """Append what an export holds.

    \b
    topics import backup.ndjson.gz

    Topics that are not there are made with their config. Records keep data, tag, node and meta;
    they get new seqs and times. All FILEs are checked before the first append; - is stdin, which is
    checked at its end.

    An import may be run again, or after an interruption: what is there is not appended twice. That
    holds while the topic knows the keys of the import, its idempotency_window_ms: at least 7 days
    for a topic that is made by this.
    """
    for file in files:
        if file != "-":
            with click.open_file(file, "rb") as stream:
                for _ in _content(file, blocks(stream)):
                    pass
    with reached(shell) as client:
        for file in files:
            with opened(shell, file) as found:
                _append(shell, client, _content(file, found), to)


def _export(
    shell: Shell, client: Topics, states: list[TopicState], out: IO[bytes], is_gzip: bool
) -> None:
    """Write all."""
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
    shell.say(f"exported {counted(sum(counts.values()))} of {', '.join(counts)}")
    if shell.is_json and out is not sys.stdout.buffer:
        shell.emit(footer)


def _append(
    shell: Shell, client: Topics, content: Iterator[tuple[bytes, str]], to: str | None
) -> None:
    """Append all records of an export."""
    with ExitStack() as stack:
        for line, place in content:
            try:
                found = _decode(line)
            except msgspec.DecodeError:
                raise Failed(f"{place}: {DAMAGED}", "damaged_export") from None
            if found.header is not None:
                stack.close()
                known = TopicConfigPatch.__struct_fields__
                config = {key: each for key, each in found.header.config.items() if key in known}
                loader = Loader(shell, client, to or found.header.topic, "", config=config)
                stack.enter_context(loader).open()
            elif found.data is not NOTHING:
                sent = {"data": found.data, "tag": found.tag, "node": found.node}
                if found.meta is not NOTHING:
                    sent["meta"] = found.meta
                loader.add(_encode(sent), place, line)


def _content(name: str, found: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    """The lines of an export without its footer, and their places. Raises `Failed` at the end of
    one that is cut or changed.
    """
    digest, last, place = hashlib.sha256(), b"", ""
    lines = Lines(_unpacked(found), name)
    try:
        for line in lines:
            if place:
                digest.update(last + b"\n")
                yield last, place
            elif not line.startswith(HEADER):
                raise bad_input(name, "not an export of topics")
            last, place = line, lines.place
        footer = _decode(last).footer
    except (zlib.error, msgspec.DecodeError):
        footer = None
    if footer is None or footer.get("sha256") != digest.hexdigest():
        raise Failed(f"{name}: {DAMAGED}", "damaged_export")


def _unpacked(found: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of bytes, decompressed if they are compressed."""
    unpack: Any = None
    for number, block in enumerate(found):
        if number == 0 and block.startswith(GZIP):
            unpack = zlib.decompressobj(31)
        # What stands behind the end is shown, too: it belongs to no export.
        yield unpack.decompress(block) + unpack.unused_data if unpack else block
