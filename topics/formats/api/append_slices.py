"""Sliced decoding: decodes a long append body slice by slice, so that other requests can be served
between two slices.

The end of a slice is guessed: it is a comma that seems to separate two records. JSON is parsed from
left to right without backtracking. So if the text from the start of a record up to a comma parses
as a list of complete records, that comma is between two records. If the guessed comma is inside a
string or a nested list, the text does not parse, and another comma is tried.
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

SLICE_BYTES = 1 << 20  # a slice is decoded in 1 to 4 ms; the last one may be twice as long
ATTEMPTS_MAX = 4  # number of commas to try before the slice is extended
HEAD_MAX_BYTES = 64 << 10
_RECORDS = re.compile(rb'"records"\s*:\s*\[')
_BETWEEN = re.compile(rb"""\}\s*(,)\s*\{\s*"(?:data|tag|node|meta|delay_ms|deliver_at)"\s*:""")


class _Ignored(msgspec.Struct):
    """An object whose members are all ignored. The decoder only checks their grammar."""


_append = msgspec.json.Decoder(AppendBody)
_records = msgspec.json.Decoder(list[RecordIn])
_nothing = msgspec.json.Decoder(_Ignored)


def slices(body: Buffer, records_max: int = sys.maxsize) -> Iterator[AppendBody | None]:
    """Yield None after each step, and finally the decoded request.

    Raises the same errors as decoding the complete body, and `BatchTooLarge` as soon as there are
    more records than ``records_max``. The caller must check that the body is valid UTF-8. If no
    guess succeeds, the body is decoded in one step.
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
        for attempt in _find_slice_end(
            view, start, lambda text: found.extend(_records.decode(text))
        ):
            comma = attempt
            yield None
        # Check the limit early, because a decoded record takes far more memory than its bytes.
        if len(found) > records_max:
            raise BatchTooLarge(f"more than {records_max} records in one write", max=records_max)
        if comma is None:
            break
        start = comma + 1
    if not found:
        yield _append.decode(body)
        return
    # Decode the head and the rest of the body together. If a JSON object contains a key twice, the
    # decoder uses the last value. So if the rest contains a second "records" member, that list
    # replaces all records that were found. To detect this, a marker record that is longer than the
    # rest is inserted before the rest. If the result does not start with the marker, the list was
    # replaced.
    rest = view[start:]
    mark = b'{"data":"%b"},' % (b"x" * len(rest))
    request = _append.decode(b"".join((head, mark, rest)))
    if request.records and len(request.records[0].data) > len(rest):
        found.extend(request.records[1:])
        request.records = found
    yield request


def without_records(body: bytes) -> Iterator[bytes | None]:
    """Yield None after each step, and finally the body without most of its records.

    The result can be decoded if and only if the complete body can. If no guess succeeds, the body
    is returned unchanged.
    """
    view = memoryview(body)
    start = first = _first_record(view)
    while start is not None and len(view) - start > 2 * SLICE_BYTES:
        comma = None
        for attempt in _find_slice_end(view, start, _skip):
            comma = attempt
            yield None
        if comma is None:
            break
        start = comma + 1
    yield body if start == first else b"".join((view[:first], view[start:]))


def _skip(records: bytes) -> None:
    _nothing.decode(b'{"":%b}' % records)


def _first_record(view: memoryview) -> int | None:
    """Return the offset of the first record, after the opening bracket, or None if not found.

    The bracket is verified: if the list is closed immediately after it, the text must be a valid
    request without records.
    """
    match = _RECORDS.search(view[:HEAD_MAX_BYTES])
    if match is None:
        return None
    try:
        _append.decode(bytes(view[: match.end()]) + b"]}")
    except (msgspec.MsgspecError, RecursionError):
        return None
    return match.end()


def _find_slice_end(
    view: memoryview, start: int, take: Callable[[bytes], object]
) -> Iterator[int | None]:
    """Find the end of a slice of records that starts at ``start``, and pass the slice to ``take``.

    ``take`` receives a JSON array and raises an error of msgspec if it does not parse. Yields None
    for each wrong guess, and finally the offset of the comma after the slice. If no guess succeeds,
    no offset is yielded.
    """
    length = SLICE_BYTES
    while start + length < len(view):
        window = view[start + length : start + length + SLICE_BYTES]
        for match in islice(_BETWEEN.finditer(window), ATTEMPTS_MAX):
            comma = start + length + match.start(1)
            try:
                take(b"".join((b"[", view[start:comma], b"]")))
            except (msgspec.MsgspecError, RecursionError):
                yield None
            else:
                yield comma
                return
        length *= 2
