"""The command append: appends records from the command line, a file or a pipe.

DATA ---------------------------------------.
file or pipe --> blocks as UTF-8 --> `Lines` -+-> `Records` --> `Loader` --> appends
                                                      |            |
                                                      '------------+-> `Rejects`
"""

from __future__ import annotations

import codecs
import csv
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from topics.cli import units
from topics.cli.completing import TOPIC
from topics.cli.loading import (
    BYTE_ORDER_MARK,
    INPUT,
    Lines,
    Loader,
    Rejects,
    invalid_input,
    opened,
    reached,
)
from topics.cli.shell import Shell, command, nearest, pass_shell

NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_check = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.encode


def _object(_: object, _parameter: object, value: str | None) -> str | None:
    try:
        if value is not None:
            msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        raise click.BadParameter(f"{value!r} is not a JSON object") from None
    return value


def _delimiter(_: object, _parameter: object, value: str | None) -> str | None:
    value = {"\\t": "\t", "tab": "\t"}.get(value or "", value)
    if value is not None and (len(value) != 1 or value in '"\r\n'):
        raise click.BadParameter("must be one character, or tab")
    return value


def _encoding(_: object, _parameter: object, value: str) -> str:
    try:
        name = codecs.lookup(value).name
        codecs.getincrementaldecoder(name)().decode(b"", True).encode()
        return name
    except (LookupError, AttributeError, ValueError):
        raise click.BadParameter(f"{value!r} is not a known text encoding") from None


@command("append")
@click.argument("topic", type=TOPIC)
@click.argument("data", nargs=-1)
@click.option("-f", "--file", type=INPUT, help="Append the contents of a file; - is stdin.")
@click.option("--as", "kind", type=click.Choice(["json", "lines", "csv"]), default="json",
              help="json: one value per line (default); lines: each line is a string; csv: the"
              " first line has the field names.")  # fmt: skip
@click.option("--tag", help="The tag of the records.")
@click.option("--tag-field", metavar="FIELD", help="Take the tag of each record from this field.")
@click.option("--node", help="The node of the records. Reads by this node omit them.")
@click.option("--meta", metavar="JSON", callback=_object, help="The meta object of the records.")
@click.option("--delay", "delay_ms", metavar="TIME", type=units.DURATION,
              help="Delay the jobs of a queue by this time.")  # fmt: skip
@click.option("--numbers", is_flag=True, help="Append numbers in a CSV file as JSON numbers.")
@click.option("--delimiter", metavar="CHAR", callback=_delimiter,
              help="The delimiter of a CSV file (,).")  # fmt: skip
@click.option("--encoding", metavar="NAME", default="utf-8", callback=_encoding,
              help="The encoding of a file or pipe (utf-8).")  # fmt: skip
@click.option("--errors", type=click.Choice(["strict", "replace", "skip"]), default="strict",
              help="strict: stop at the first bad line (default); replace: replace undecodable"
              " bytes with U+FFFD; skip: skip bad lines.")  # fmt: skip
@click.option("--rejects", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
              help="Write the lines skipped by --errors skip to FILE.")  # fmt: skip
@click.option("--key", help="Append the records only once with this idempotency key.")
@click.option("--key-prefix", metavar="TEXT",
              help="Key prefix; equal contents are appended once per prefix.")  # fmt: skip
@click.option("--again", is_flag=True, help="Append a file even if it has been appended before.")
@pass_shell
def append(
    shell: Shell,
    /,
    topic: str,
    data: tuple[str, ...],
    file: str | None,
    encoding: str,
    errors: str,
    rejects: str | None,
    key: str | None,
    key_prefix: str | None,
    again: bool,
    **options: Any,
) -> None:
    """Append records: JSON, lines of text, or CSV.

    \b
    topics append orders '{"sku": "A1"}'
    topics append log 'hello world' --as lines
    topics append orders -f orders.ndjson
    tail -f app.log | topics append log --as lines

    A topic that does not exist is created.

    A file is appended only once: its records get idempotency keys made from their content, so a
    second run appends nothing, and a run after an interruption continues. This holds while the
    topic stores the keys (idempotency_window_ms: 7 days if this command creates the topic,
    otherwise 2 minutes by default), even if the records were deleted. --again or another
    --key-prefix appends the entire file again.

    If a file has grown, up to 1,000 records before the new ones are appended again. To avoid this,
    append new records from a new file, or from a pipe (tail -f).

    If none of -f, --key and --key-prefix is given, records from a pipe are appended as they are
    read, and each run appends them again. If a line is invalid, the lines before it are appended
    before the command stops. With -f - or --key-prefix, a pipe is treated like a file.

    --key is for programs that determine themselves whether records are the same: records with a
    known key are not appended, even if their contents differ. KEY is the key for the first 1,000
    records or the first MiB, KEY:2 is the key for the next ones, and so on.
    """
    kind, is_csv = options["kind"], options["kind"] == "csv"
    wrong = {
        "specify DATA or -f FILE, not both": data and file is not None,
        "--as csv needs -f FILE or a pipe": data and is_csv,
        "--numbers and --delimiter need --as csv": not is_csv
        and (options["numbers"] or options["delimiter"]),
        "--tag-field: a line of text has no fields": options["tag_field"] and kind == "lines",
        "--rejects needs --errors skip": rejects is not None and errors != "skip",
        "--rejects would overwrite the input": rejects and file and _is_same(rejects, file),
        "--key, --key-prefix and --again exclude each other": (key is not None)
        + (key_prefix is not None)
        + again
        > 1,
        "nothing to append: specify DATA or -f FILE, or use a pipe": not data
        and file is None
        and sys.stdin.isatty(),
    }
    for message, is_wrong in wrong.items():
        if is_wrong:
            raise click.UsageError(message)
    has_content_keys = not again and not key and (file is not None or key_prefix is not None)
    hint = "--again appends them again" if key is None else "a different --key appends them again"
    skipped = Rejects(shell) if errors == "skip" else None
    records = Records(errors, encoding, skipped, **options)
    with nullcontext() if skipped is None or rejects is None else skipped.written(rejects):
        # Check all DATA before the first append.
        given = [*records.of_lines(map(os.fsencode, data), lambda: "DATA")]
        with (
            shell.client() if data else reached(shell) as client,
            Loader(
                shell, client, topic, (key_prefix or "") if has_content_keys else None,
                key=key, hint=hint, rejects=skipped,
            ) as loader,
        ):  # fmt: skip
            for record, line in given:
                loader.add(record, "DATA", line=line)
            if data:
                return
            file = file or "-"
            name = "stdin" if file == "-" else file
            # With keys, the chunks must not depend on the times at which the input is received.
            on_idle = None if has_content_keys or key else loader.flush
            with opened(shell, file, on_idle) as found:
                lines = Lines(_recoded(found, encoding, errors, name), name)
                for record, line in records.of(lines):
                    loader.add(record, lines.location, line=line)


def _is_same(path: str, file: str) -> bool:
    return file != "-" and Path(path).exists() and Path(path).samefile(file)


class BadLine(Exception):
    """The line is not a record. The message contains the reason."""


class Records:
    """Converts lines to JSON records (§2), and yields each record together with its line."""

    def __init__(
        self,
        errors: str,
        encoding: str,
        rejects: Rejects | None,
        *,
        kind: str,
        numbers: bool,
        delimiter: str | None,
        tag: str | None,
        tag_field: str | None,
        **fields: Any,
    ) -> None:
        self._errors, self._encoding, self._rejects, self._kind = errors, encoding, rejects, kind
        self._numbers, self._delimiter = numbers, delimiter or ","
        self._tag, self._tag_field = tag, tag_field
        self._tag_of = None if tag_field is None else _tag_reader(tag_field)
        self._end = b"".join(
            b',"%b":%b'
            % (name.encode(), _encode(msgspec.Raw(value.encode()) if name == "meta" else value))
            for name, value in fields.items()
            if value is not None
        )

    def of(self, lines: Lines) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a file. Raise `Failed`."""
        if self._kind == "csv":
            return self._of_csv(lines)
        return self.of_lines(lines, lambda: lines.location)

    def of_lines(
        self, lines: Iterable[bytes], location: Callable[[], str]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield a record for each line. Raise `Failed`."""
        for line in lines:
            try:
                if self._kind == "lines":
                    data = _encode(self._checked(line.removesuffix(b"\r")).decode())
                    yield self._record(data, self._tag), line
                elif text := self._checked(line.removeprefix(BYTE_ORDER_MARK).strip()):
                    yield self._of_json(text), line
            except BadLine as error:
                self._skip(line, location(), str(error))

    def _skip(self, line: bytes, location: str, reason: str) -> None:
        if self._rejects is None:
            raise invalid_input(location, reason) from None
        self._rejects.add(line, location, reason)

    def _checked(self, line: bytes) -> bytes:
        """Return a line as UTF-8. Raise `BadLine`."""
        try:
            line.isascii() or line.decode()
        except UnicodeDecodeError as error:
            if self._errors == "replace":
                return line.decode(errors="replace").encode()
            location = f" (byte {error.start + 1})" if self._encoding == "utf-8" else ""
            how = "--encoding selects a different encoding, --errors replace or skip continues"
            raise BadLine(f"not {self._encoding}{location}; {how}") from None
        return line

    def _of_json(self, text: bytes) -> bytes:
        """Return the record for a JSON value. Raise `BadLine`."""
        tag = self._tag
        try:
            _check(text)
            if self._tag_of is not None:
                tag = self._tag_of(text) or tag
        except msgspec.ValidationError:
            reason = f"--tag-field needs an object whose {self._tag_field} is a text or a number"
            raise BadLine(reason) from None
        except msgspec.DecodeError as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            hint = "--as lines appends text"
            if text in (b"[", b"{"):
                hint = "each value must be one line, as jq -c . prints it"
            if text == b"-":
                hint = "-f - reads stdin"
            raise BadLine(f"not JSON: {reason}; {hint}") from None
        except RecursionError:
            raise BadLine("nested too deeply") from None
        return self._record(text, tag)

    def _of_csv(self, lines: Lines) -> Iterator[tuple[bytes, bytes]]:
        """Yield a record for each row after the first, which has the field names."""
        csv.field_size_limit(1 << 30)
        raw: list[bytes] = []  # the lines of the current row
        handler = "replace" if self._errors == "replace" else "surrogateescape"

        def texts() -> Iterator[str]:
            for line in lines:
                raw.append(line)
                yield line.decode("utf-8", handler) + "\n"

        rows = csv.reader(texts(), strict=True, delimiter=self._delimiter)
        try:
            names = next(rows, [])
            at = self._column(names)
            _encode(names)
        except (csv.Error, UnicodeEncodeError, BadLine) as error:
            raise invalid_input(lines.location, self._reason(error)) from None
        if self._rejects is not None:
            self._rejects.head = b"\n".join(raw)
        while True:
            raw.clear()
            try:
                if (row := next(rows, None)) is None:
                    return
                if row:
                    yield self._of_row(names, row, at), b"\n".join(raw)
            except (csv.Error, UnicodeEncodeError, BadLine) as error:
                self._skip(b"\n".join(raw), lines.location, self._reason(error))

    def _of_row(self, names: list[str], row: list[str], at: int | None) -> bytes:
        if len(row) != len(names):
            raise BadLine(f"{len(row)} fields, but the first line has {len(names)}")
        values = map(_number_or_text, row) if self._numbers else row
        tag = self._tag if at is None else row[at]
        return self._record(_encode(dict(zip(names, values, strict=True))), tag)

    def _column(self, names: list[str]) -> int | None:
        """Return the index of the column that contains the tag. Raise `BadLine`."""
        if len({*names}) < len(names):
            raise BadLine("two fields have the same name")
        if self._tag_field is None:
            return None
        if self._tag_field not in names:
            raise BadLine(f"unknown field {self._tag_field}{nearest(self._tag_field, names)}")
        return names.index(self._tag_field)

    def _reason(self, error: Exception) -> str:
        if isinstance(error, BadLine):
            return str(error)
        is_csv = isinstance(error, csv.Error)
        return f"not CSV: {error}" if is_csv else f"not {self._encoding}"

    def _record(self, data: bytes, tag: str | None) -> bytes:
        tagged = b"" if tag is None else b',"tag":' + _encode(tag)
        return b'{"data":' + data + tagged + self._end + b"}"


def _recoded(blocks: Iterable[bytes], encoding: str, errors: str, name: str) -> Iterator[bytes]:
    """Yield the contents as UTF-8. Bytes that cannot be decoded stay invalid, so that the error is
    reported for their line. Raise `Failed`.
    """
    if encoding == "utf-8":
        yield from blocks
        return
    handler = "replace" if errors == "replace" else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(handler)
    try:
        for block in chain(blocks, [b""]):
            yield decoder.decode(block, not block).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise invalid_input(name, f"not {encoding}") from None


def _tag_reader(field: str) -> Callable[[bytes], str | None]:
    """Return a function that reads the tag from a member of an object."""
    types = str | int | float | None
    kind = msgspec.defstruct("Tagged", [("tag", types, None)], rename={"tag": field})
    decode = msgspec.json.Decoder(kind).decode

    def tag_of(data: bytes) -> str | None:
        (tag,) = msgspec.structs.astuple(decode(data))
        return None if tag is None else str(tag)

    return tag_of


def _number_or_text(text: str) -> str | msgspec.Raw:
    return msgspec.Raw(text.encode()) if NUMBER.fullmatch(text) else text
