"""Metrics as clients read them (§8.3): the text exposition format 0.0.4 of Prometheus, and JSON.

    # HELP topics_wal_fsyncs_total Syncs of the log.
    # TYPE topics_wal_fsyncs_total counter
    topics_wal_fsyncs_total 88241
    topics_wal_fsync_latency_us_bucket{le="500"} 84120       cumulative, up to le="+Inf"
    topics_topics_by_class{class="fsync"} 12

The JSON object has a member for each family, named after it. Its value is a number if the family
has no labels, otherwise a list of objects with the labels and the ``value``. The value of a
histogram is ``{"buckets": [{"le", "count"}], "sum", "count"}`` instead of a number. Both forms are
rendered in chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from enum import StrEnum
from functools import cache
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

STEP_ROWS: Final = 256  # number of rows of a column that are rendered in one step
MEDIA_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_TO_ESCAPE: Final = frozenset('\\"\n')
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


class MetricKind(StrEnum):
    """The type names of the exposition format."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Histogram(NamedTuple):
    """Each item of ``buckets`` is the number of observations between the previous bound and its own
    bound. The last item is the number of observations above the last bound.
    """

    bounds: Sequence[int]
    buckets: Sequence[int]
    sum: int

    def cumulative(self) -> list[tuple[str, int]]:
        """Return each bound with the number of observations up to it."""
        return [*zip([*map(str, self.bounds), "+Inf"], accumulate(self.buckets), strict=True)]


Value: TypeAlias = int | float | Histogram
Series: TypeAlias = tuple[tuple[tuple[str, str], ...], Value]  # labels and value


class Column:
    """The series of a family with one label: a column of a table whose rows are identified by the
    label. A table may have many rows, so they are rendered in steps of `STEP_ROWS`, and the labels
    are rendered once for all columns.
    """

    def __init__(self, label: str, names: Sequence[str], values: Sequence[int | None]) -> None:
        """Create a column. Rows whose value is None are omitted."""
        self._label, self._names, self.values = label, names, values
        if not _TO_ESCAPE.isdisjoint("".join(names)):
            names = [name.translate(_LABEL_ESCAPES) for name in names]
        self._shown = [f'{{{label}="{name}"}}' for name in names]

    def __iter__(self) -> Iterator[Series]:
        rows = zip(self._names, self.values, strict=True)
        return ((((self._label, name),), value) for name, value in rows if value is not None)

    def with_values(self, values: Sequence[int | None]) -> Column:
        """Return a column with the same rows and different values."""
        column = copy(self)
        column.values = values
        return column

    def lines(self, name: str) -> Iterator[bytes]:
        """Yield the series in the text format, in steps of several lines."""
        for rows in self._steps(self._shown):
            yield "".join([f"{name}{shown} {value}\n" for shown, value in rows]).encode()

    def items(self) -> Iterator[bytes]:
        """Yield the series as JSON objects, in steps of several objects joined by commas."""
        for rows in self._steps(self._names):
            items = [{self._label: name, "value": value} for name, value in rows]
            yield msgspec.json.encode(items)[1:-1]

    def _steps(self, names: Sequence[str]) -> Iterator[list[tuple[str, int]]]:
        count = len(names) if any(value is not None for value in self.values) else 0
        for at in range(0, count, STEP_ROWS):
            step = zip(names[at : at + STEP_ROWS], self.values[at : at + STEP_ROWS], strict=True)
            rows = [(name, value) for name, value in step if value is not None]
            if rows:
                yield rows


class MetricFamily(NamedTuple):
    """A metric with all its series, which have the same label names."""

    name: str
    kind: MetricKind
    help: str
    series: Iterable[Series]


def text_chunks(families: Iterable[MetricFamily]) -> Iterator[bytes]:
    """Yield the exposition text of all families, including families without a value."""
    for name, kind, text, series in families:
        lines = [_head(name, kind, text)]
        if isinstance(series, Column):
            yield lines[0].encode()
            yield from series.lines(name)
            continue
        for labels, value in series:
            pairs = [f'{label}="{text.translate(_LABEL_ESCAPES)}"' for label, text in labels]
            if isinstance(value, Histogram):
                lines.append(_histogram_lines(name, pairs, value))
            else:
                lines.append(f"{name}{_braces(pairs)} {value}\n")
        yield "".join(lines).encode()


@cache
def _head(name: str, kind: MetricKind, text: str) -> str:
    return f"# HELP {name} {text.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind.value}\n"


def _histogram_lines(name: str, pairs: list[str], value: Histogram) -> str:
    counts, shown = value.cumulative(), _braces(pairs)
    lines = []
    for bound, count in counts:
        up_to = _braces([*pairs, f'le="{bound}"'])
        lines.append(f"{name}_bucket{up_to} {count}\n")
    lines += f"{name}_sum{shown} {value.sum}\n", f"{name}_count{shown} {counts[-1][1]}\n"
    return "".join(lines)


def _braces(pairs: list[str]) -> str:
    return f"{{{','.join(pairs)}}}" if pairs else ""


def json_chunks(families: Iterable[MetricFamily], tail: bytes) -> Iterator[bytes]:
    """Yield a JSON object with all families, including families without a value. ``tail`` contains
    the object's last members and its end.
    """
    yield b"{"
    for name, _, _, series in families:
        yield b'"%b":' % name.encode()
        begin, end = b"[", b"],"
        if isinstance(series, Column):
            for items in series.items():
                yield begin + items
                begin = b","
            series = ()
        for labels, value in series:
            shown = _json_value(value)
            if not labels:
                begin, end = msgspec.json.encode(shown), b","
                break
            yield begin + msgspec.json.encode({**dict(labels), "value": shown})
            begin = b","
        yield end if begin == b"," else begin + end
    yield tail


def _json_value(value: Value) -> Any:
    if not isinstance(value, Histogram):
        return value
    buckets = [{"le": bound, "count": count} for bound, count in value.cumulative()]
    return {"buckets": buckets, "sum": value.sum, "count": buckets[-1]["count"]}
