"""append: records from the command line, a file or a pipe."""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import click
import msgspec

from topics.cli.loading import INPUT, Lines, Loader, bad_input, opened, reached
from topics.cli.shell import Shell, command, nearest, pass_shell

NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_check = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.encode

KIND = click.Choice(["json", "lines", "csv"])
KIND_HELP = "json: a value a line (default); lines: each is a text; csv: the first has the names."


@command("append")
@click.argument("topic")
@click.argument("data", nargs=-1)
@click.option("-f", "--file", type=INPUT, help="Append what a file holds; - is stdin.")
@click.option("--as", "kind", type=KIND, default="json", help=KIND_HELP)
@click.option("--tag", help="The tag of the records.")
@click.option("--tag-field", metavar="FIELD", help="The field of each record that is its tag.")
@click.option("--numbers", is_flag=True, help="Numbers of a CSV file are numbers, not texts.")
@click.option("--key-prefix", metavar="TEXT", help="Tell apart what has the same content.")
@click.option("--again", is_flag=True, help="Append a file also when it was appended before.")
@pass_shell
def append(
    shell: Shell,
    /,
    topic: str,
    data: tuple[str, ...],
    file: str | None,
    kind: str,
    key_prefix: str | None,
    again: bool,
    **fields: Any,
) -> None:
    """Append records: JSON, lines of text, or CSV.

    \b
    topics append orders '{"sku": "A1"}'
    topics append log 'hello world' --as lines
    topics append orders -f orders.ndjson
    tail -f app.log | topics append log --as lines

    A topic that is not there is made.

    A file is appended once: its records have keys that are made of its content, so a second run
    appends nothing, and a run after an interruption goes on where it was. That holds while the
    topic knows the keys, its idempotency_window_ms: 7 days for a topic that is made by this, else
    mostly 2 minutes. Of a file that has grown, up to a thousand records before the new ones come
    again. --again, or another --key-prefix, appends it all once more.

    A pipe without -f is appended as it comes, each time. With -f - or --key-prefix it is like a
    file.
    """
    if data and file is not None:
        raise click.UsageError("DATA or -f FILE, not both")
    if (data and kind == "csv") or (fields["numbers"] and kind != "csv"):
        raise click.UsageError("--as csv needs -f FILE or a pipe, and --numbers needs --as csv")
    if fields["tag_field"] is not None and kind == "lines":
        raise click.UsageError("--tag-field: a line of text has no fields")
    if not data and file is None and sys.stdin.isatty():
        raise click.UsageError("nothing to append: name DATA or -f FILE, or use a pipe")
    is_known = not again and (file is not None or key_prefix is not None)
    prefix = (key_prefix or "") if is_known else None
    records = Records(**fields)
    with (
        shell.client() if data else reached(shell) as client,
        Loader(shell, client, topic, prefix) as loader,
    ):
        for text in data:
            loader.add(records.record(os.fsencode(text), kind, "DATA"), "DATA")
        if data:
            return
        file = file or "-"
        with opened(shell, file, None if is_known else loader.flush) as found:
            lines = Lines(found, "stdin" if file == "-" else file)
            for record in records.of_csv(lines) if kind == "csv" else records.of_lines(lines, kind):
                loader.add(record, lines.place)


class Records:
    """Records (§2) as JSON, made of texts."""

    def __init__(self, tag: str | None, tag_field: str | None, numbers: bool) -> None:
        self._tag, self._tag_field, self._numbers = tag, tag_field, numbers
        self._tag_of = None if tag_field is None else _tag_reader(tag_field)

    def of_lines(self, lines: Lines, kind: str) -> Iterator[bytes]:
        """A record of each line."""
        for line in lines:
            text = line.strip() if kind == "json" else line.removesuffix(b"\r")
            if text or kind == "lines":
                yield self.record(text, kind, lines.place)

    def record(self, text: bytes, kind: str, place: str) -> bytes:
        """A record of a text. Raises `Failed`."""
        tag = self._tag
        try:
            text.isascii() or text.decode()
            if kind == "lines":
                return _record(_encode(text.decode()), tag)
            _check(text)
            if self._tag_of is not None:
                tag = self._tag_of(text) or tag
        except UnicodeDecodeError as error:
            raise bad_input(place, f"not UTF-8 (byte {error.start + 1})") from None
        except msgspec.ValidationError:
            what = f"--tag-field {self._tag_field} needs objects with a text or number there"
            raise bad_input(place, what) from None
        except msgspec.DecodeError as error:
            what = str(error).removeprefix("JSON is malformed: ")
            hint = "--as lines appends text"
            if text in (b"[", b"{"):
                hint = "each value stands in one line (jq -c . makes it so)"
            raise bad_input(place, f"not JSON: {what}; {hint}") from None
        return _record(text, tag)

    def of_csv(self, lines: Lines) -> Iterator[bytes]:
        """A record of each row but the first, which has the names."""
        csv.field_size_limit(1 << 30)
        texts = (
            line.decode("utf-8-sig" if number == 0 else "utf-8") + "\n"
            for number, line in enumerate(lines)
        )
        rows = csv.reader(texts, strict=True)
        try:
            names = next(rows, [])
            at = self._column(names, lines.place)
            for row in filter(None, rows):
                if len(row) != len(names):
                    what = f"{len(row)} fields, but the first line names {len(names)}"
                    raise bad_input(lines.place, what)
                values = map(_number_or_text, row) if self._numbers else row
                tag = self._tag if at is None else row[at]
                yield _record(_encode(dict(zip(names, values, strict=True))), tag)
        except (csv.Error, UnicodeDecodeError) as error:
            raise bad_input(lines.place, f"not CSV: {error}") from None

    def _column(self, names: list[str], place: str) -> int | None:
        """Where the tag stands."""
        if len({*names}) < len(names):
            raise bad_input(place, "two fields have one name")
        if self._tag_field is None:
            return None
        if self._tag_field not in names:
            what = f"there is no field {self._tag_field}{nearest(self._tag_field, names)}"
            raise bad_input(place, what)
        return names.index(self._tag_field)


def _record(data: bytes, tag: str | None) -> bytes:
    end = b"" if tag is None else b',"tag":' + _encode(tag)
    return b'{"data":' + data + end + b"}"


def _tag_reader(field: str) -> Callable[[bytes], str | None]:
    """What reads the tag that an object has in ``field``."""
    types = str | int | float | None
    kind = msgspec.defstruct("Tagged", [("tag", types, None)], rename={"tag": field})
    decode = msgspec.json.Decoder(kind).decode

    def tag_of(data: bytes) -> str | None:
        (tag,) = msgspec.structs.astuple(decode(data))
        return None if tag is None else str(tag)

    return tag_of


def _number_or_text(text: str) -> str | msgspec.Raw:
    return msgspec.Raw(text.encode()) if NUMBER.fullmatch(text) else text
