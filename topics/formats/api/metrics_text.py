"""Metrics as clients read them (§8.3): the text exposition format 0.0.4 of Prometheus, and JSON.

    # HELP topics_wal_fsyncs_total Syncs of the log.
    # TYPE topics_wal_fsyncs_total counter
    topics_wal_fsyncs_total 88241
    topics_wal_fsync_latency_us_bucket{le="500"} 84120       cumulative, up to le="+Inf"
    topics_topics_by_class{class="fsync"} 12

The JSON object has a member for each family, by its name: a number where
the family has no labels, else a list of objects with the labels and the ``value``. In place of a
number a histogram has ``{"buckets": [{"le", "count"}], "sum", "count"}``.

Both forms come piece by piece, so that a long page does not hold up the loop, and take the series
of a family one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import accumulate, chain, islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

MEDIA_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
SERIES_PER_PIECE: Final = 500  # some hundred microseconds
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})

Labels: TypeAlias = tuple[tuple[str, str], ...]


class MetricKind(Enum):
    """The values are the type names of the exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram(NamedTuple):
    """``buckets`` counts the observations up to each bound, not those of smaller bounds, and at
    its end those above the last bound.
    """

    bounds: Sequence[int]
    buckets: Sequence[int]
    sum: int


Value: TypeAlias = int | float | Histogram


class Series(NamedTuple):
    """One value of a family."""

    labels: Labels
    value: Value


class Family(NamedTuple):
    """All values of one name. Every series has the same label names."""

    name: str
    kind: MetricKind
    help: str
    series: Iterable[Series]


def text_pieces(families: Iterable[Family]) -> Iterator[str]:
    """The exposition text of all families, those without a value included."""
    for name, kind, text, series in families:
        yield f"# HELP {name} {text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind.value}\n"
        for part in _parts(series):
            yield "".join([_lines(name, *one) for one in part])


def json_pieces(families: Iterable[Family], tail: bytes) -> Iterator[bytes]:
    """The JSON object of all families, those without a value included. ``tail``: its last members,
    and the end of the object.
    """
    yield b"{"
    for family in families:
        yield b'"%b":' % family.name.encode()
        yield from _json_values(_parts(family.series))
        yield b","
    yield tail


def _parts(series: Iterable[Series]) -> Iterator[list[Series]]:
    rest = iter(series)
    while part := list(islice(rest, SERIES_PER_PIECE)):
        yield part


def _lines(name: str, labels: Labels, value: Value) -> str:
    if not isinstance(value, Histogram):
        return f"{name}{_braces(labels)} {value}\n"
    bounds = [*map(str, value.bounds), "+Inf"]
    counts = [*accumulate(value.buckets)]
    lines = [
        f"{name}_bucket{_braces((*labels, ('le', bound)))} {count}\n"
        for bound, count in zip(bounds, counts, strict=True)
    ]
    shown = _braces(labels)
    return "".join((*lines, f"{name}_sum{shown} {value.sum}\n{name}_count{shown} {counts[-1]}\n"))


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = [f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels]
    return f"{{{','.join(pairs)}}}"


def _json_values(parts: Iterator[list[Series]]) -> Iterator[bytes]:
    first = next(parts, [])
    if first and not first[0].labels:
        yield msgspec.json.encode(_json_value(first[0].value))
        return
    separator = b"["
    for part in chain((first,), parts):
        rows = [{**dict(labels), "value": _json_value(value)} for labels, value in part]
        yield separator + msgspec.json.encode(rows)[1:-1]
        separator = b","
    yield b"]"


def _json_value(value: Value) -> Any:
    if not isinstance(value, Histogram):
        return value
    bounds, counts = [*map(str, value.bounds), "+Inf"], [*accumulate(value.buckets)]
    buckets = [{"le": bound, "count": count} for bound, count in zip(bounds, counts, strict=True)]
    return {"buckets": buckets, "sum": value.sum, "count": counts[-1]}
