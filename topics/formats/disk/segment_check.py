"""Extent check: what must hold in an extent beyond its checksums.

For programs that look for damage, not for readers: every record is compared with the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import cbor2

from topics.formats.disk.extent_view import Dictionary, ExtentView
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import CHUNK_BYTES, BadSegment, ExtentKey

Found = Iterator[tuple[int, str]]
"""``(offset in the file, reason)`` of everything that is wrong."""

_Made = TypeVar("_Made")


def check_extent(view: ExtentView) -> Found:
    """What is wrong in an extent whose tables have the right checksum."""
    found = [*_check_tables(view)]
    if not found:
        found += _check_chunks(view)
    if not found:
        found += _check_records(view)
    yield from found


def _check_tables(view: ExtentView) -> Found:
    entry, at = view.entry, view.entry.tables_at
    if not _ascends([0, *view.ends], entry.blob_bytes):
        yield at, "the ends of the records do not ascend to the end of the blob"
    if entry.flags & RecordFlags.NODES and entry.flags & RecordFlags.ONE_NODE:
        yield at, "there are nodes for some and one for all"
    yield from _check_texts(view, "node", RecordFlags.NODES, view.nodes)
    yield from _check_texts(view, "tag", RecordFlags.TAGS, view.tags)
    if entry.flags & RecordFlags.ONE_NODE and len(view.nodes) != 1:
        yield at, "there is not just one node"
    if entry.flags & RecordFlags.TAGS and not _postings_fit(view):
        yield at, "the postings are not those of the tags"
    keys = _unless_broken(lambda: [*view.idempotency_keys()])
    if keys is None or not all(_is_key_of(key, view) for key in keys):
        yield at, "the idempotency keys are not those of this extent's writes"


def _check_texts(view: ExtentView, name: str, flag: RecordFlags, texts: Dictionary) -> Found:
    at = view.entry.tables_at
    refs = view.column(flag, 0, view.count) if view.entry.flags & flag else ()
    if refs and max(refs) > len(texts):
        yield at, f"a record has a {name} that is not in the dictionary"
    words = _unless_broken(partial(_all_texts, texts))
    if words is None or not texts.is_whole or any(word >= after for word, after in pairwise(words)):
        yield at, f"the {name}s do not ascend"


def _all_texts(texts: Dictionary) -> list[bytes]:
    return [texts.text(ref) for ref in range(1, len(texts) + 1)]


def _ascends(ends: Sequence[int], last: int) -> bool:
    return ends[-1] == last and all(end < next_end for end, next_end in pairwise(ends))


def _unless_broken(make: Callable[[], _Made]) -> _Made | None:
    try:
        return make()
    except (cbor2.CBORDecodeError, TypeError, ValueError, IndexError):
        return None


def _is_key_of(key: ExtentKey, view: ExtentView) -> bool:
    return (
        isinstance(key.key, str)
        and all(isinstance(number, int) for number in key[1:])
        and key.first_seq < view.entry.first_seq + view.count
        and key.record_count > 0
    )


def _postings_fit(view: ExtentView) -> bool:
    postings: dict[int, list[int]] = {}
    for index, ref in enumerate(view.column(RecordFlags.TAGS, 0, view.count)):
        if ref:
            postings.setdefault(ref, []).append(index)
    alike = all(postings.pop(ref, []) == [*indexes] for ref, indexes in view.postings)
    return alike and not postings


def _check_chunks(view: ExtentView) -> Found:
    size = view.entry.blob_bytes
    for start in range(0, size, CHUNK_BYTES):
        try:
            view.part(start, min(start + CHUNK_BYTES, size))
        except BadSegment as error:
            yield error.offset, error.reason


def _check_records(view: ExtentView) -> Found:
    """Each record begins with seq, time, node and tag as the tables have them, and ends with its
    meta.
    """
    entry = view.entry
    nodes = _column(view, RecordFlags.NODES)
    if entry.flags & RecordFlags.ONE_NODE:
        nodes = b"\1" * view.count
    tags, metas = _column(view, RecordFlags.TAGS), _column(view, RecordFlags.METAS)
    begin, times = 0, []
    for index, (end, node, tag, meta) in enumerate(zip(view.ends, nodes, tags, metas, strict=True)):
        record, seq = bytes(view.part(begin, end)), entry.first_seq + index
        ts = _unless_broken(partial(view.ts, index))
        times.append(ts)
        head = b'{"$seq":%d,"$ts":%d' % (seq, ts or 0)
        head += b',"$node":' + view.nodes.text(node) if node else b""
        head += b',"$tag":' + view.tags.text(tag) if tag else b""
        if not record.startswith(head + b',"data":') or not record.endswith(b"},"):
            yield entry.offset + begin, f"the record of seq {seq} is not that of the tables"
        elif meta and record[-meta - 2 :][: len(b',"meta":')] != b',"meta":':
            yield entry.offset + begin, f"the record of seq {seq} lacks the meta of the tables"
        begin = end
    first_ts = next((ts for ts in times if ts is not None), None)
    if (first_ts, times[-1]) != (entry.first_ts, entry.last_ts):
        yield entry.offset, "the directory has other times than the records"


def _column(view: ExtentView, flag: RecordFlags) -> Sequence[int]:
    """The table of ``flag``, zeros where the extent has none."""
    return view.column(flag, 0, view.count) if view.entry.flags & flag else bytes(view.count)
