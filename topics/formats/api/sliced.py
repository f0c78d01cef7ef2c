"""Sliced decoding: a long append body slice by slice, so that nobody waits for all of it.

JSON is read from left to right without looking back. So when the text from the start of a record to
some comma parses as whole records, that comma is between two records, however it was guessed: a
guess inside a string or a nested list does not parse.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from topics.errors import BatchTooLarge
from topics.formats.api.append_body import AppendBody, RecordIn
from topics.formats.buffers import Buffer

SLICE_BYTES = 1 << 20  # decoded in 1 to 4 ms; the last slice may be twice as long
GUESSES_MAX = 4  # commas to try before the slice gets longer
HEAD_MAX_BYTES = 64 << 10
_RECORDS = re.compile(rb'"records"\s*:\s*\[')
_BETWEEN = re.compile(rb"""\}\s*(,)\s*\{\s*"(?:data|tag|node|meta|delay_ms|deliver_at)"\s*:""")


class _Nothing(msgspec.Struct):
    """Members are skipped, and only their grammar is checked."""


_append = msgspec.json.Decoder(AppendBody)
_records = msgspec.json.Decoder(list[RecordIn])
_nothing = msgspec.json.Decoder(_Nothing)


def slices(body: Buffer, records_max: int = sys.maxsize) -> Iterator[AppendBody | None]:
    """Yields None after each step, at last the request.

    Raises what decoding the whole body would raise, and `BatchTooLarge` as soon as there are more
    records than ``records_max``.

    The caller checks UTF-8. A body whose records cannot be told apart by guessing is decoded in one
    piece.
    """
    view = memoryview(body)
    start = _first_record(view)
    if start is None:
        yield _append.decode(body)
        return
    head = bytes(view[:start])
    found: list[RecordIn] = []
    while len(view) - start > 2 * SLICE_BYTES:
        comma = None
        for guess in _guess(view, start, lambda text: found.extend(_records.decode(text))):
            comma = guess
            yield None
        if len(found) > records_max:  # early: a record takes far more memory than bytes
            raise BatchTooLarge(f"more than {records_max} records in one write", max=records_max)
        if comma is None:
            break
        start = comma + 1
    if not found:
        yield _append.decode(body)
        return
    # Of a key that is there twice the last one counts, and the rest of the body may hold another
    # list of records. A record that is longer than the rest goes before it: when another list
    # counts, that record is gone.
    rest = view[start:]
    mark = b'{"data":"%b"},' % (b"x" * len(rest))
    request = _append.decode(b"".join((head, mark, rest)))
    if request.records and len(request.records[0].data) > len(rest):
        found.extend(request.records[1:])
        request.records = found
    yield request


def without_records(body: bytes) -> Iterator[bytes | None]:
    """Yields None after each step, at last the body without most of its records: it can be decoded
    if, and only if, the whole body can. One whose records cannot be told apart stays as it is.
    """
    view = memoryview(body)
    start = first = _first_record(view)
    while start is not None and len(view) - start > 2 * SLICE_BYTES:
        comma = None
        for guess in _guess(view, start, _skip):
            comma = guess
            yield None
        if comma is None:
            break
        start = comma + 1
    yield body if start == first else b"".join((view[:first], view[start:]))


def _skip(records: bytes) -> None:
    _nothing.decode(b'{"":%b}' % records)


def _first_record(view: memoryview) -> int | None:
    """Where the records begin: behind a bracket that, closed at once, leaves a request without
    records.
    """
    match = _RECORDS.search(view[:HEAD_MAX_BYTES])
    if match is None:
        return None
    try:
        _append.decode(bytes(view[: match.end()]) + b"]}")
    except (msgspec.MsgspecError, RecursionError):
        return None
    return match.end()


def _guess(view: memoryview, start: int, take: Callable[[bytes], object]) -> Iterator[int | None]:
    """``take`` about a slice of records from ``start``, a JSON array: None for each wrong guess,
    at which it raises as msgspec does; then the comma after them, if there is one.
    """
    length = SLICE_BYTES
    while start + length < len(view):
        window = view[start + length : start + length + SLICE_BYTES]
        for match in islice(_BETWEEN.finditer(window), GUESSES_MAX):
            comma = start + length + match.start(1)
            try:
                take(b"".join((b"[", view[start:comma], b"]")))
            except (msgspec.MsgspecError, RecursionError):
                yield None
            else:
                yield comma
                return
        length *= 2
