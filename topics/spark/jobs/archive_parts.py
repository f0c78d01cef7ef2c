"""The records of an archive in their order: by topic, partition, date and offset.

An archive has folders ``date=YYYY-MM-DD`` with Parquet files, in no order that matters. A topic's
time never goes back, so dates are in the order of offsets. Of each date and topic, a window of
offsets at a time is read and sorted. Memory is bounded by the window, whatever the size of the
files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from topics.spark.errors import JobError, WrongPath
from topics.spark.task import string_block

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.dataset import Dataset

COLUMNS = ("key", "value", "topic", "partition", "offset", "node", "headers")
WINDOW_ROWS = 250_000
WINDOW_BYTES = 128 << 20
BLOCK_ROWS = 10_000
SHOWN = 5  # names in a message
_FOLDER = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_json = msgspec.json.Decoder(msgspec.Raw)
# As Jackson escapes, so that a copy has the bytes of a write by Spark: these by name, other control
# characters by number.
_NAMED = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = str.maketrans({**{chr(code): f"\\u{code:04X}" for code in range(32)}, **_NAMED})
_SPECIAL = r'["\\\x00-\x1f]'
# Offsets and data of encoded records, as topics/spark/client/chunks.py takes them.
Block = tuple[Sequence[int], memoryview]


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The records of one source topic, partition and date: ``count`` of them, with offsets from
    ``first`` to ``last``.
    """

    topic: str
    partition: int
    date: str
    count: int
    first: int
    last: int


class Archive:
    """The archive in the local folder ``root``. Raises ``WrongPath`` when it is none."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise WrongPath(f"{root}: no such folder")
        if (root / "_delta_log").exists():
            raise WrongPath(f"{root}: it is a Delta table; only archives of Parquet are replayed")
        self.root = root
        self.dates = sorted(
            found.group(1) for path in root.iterdir() if (found := _FOLDER.fullmatch(path.name))
        )
        if not self.dates:
            raise WrongPath(f"{root}: it is no archive, it has no folder date=YYYY-MM-DD")

    def parts(self, topics: Sequence[str], since: str | None, until: str | None) -> list[Part]:
        """All parts in the order of a replay, of these topics (none: all), from the date ``since``
        to before ``until``.
        """
        parts: list[Part] = []
        for date in self.dates:
            if (since is None or date >= since) and (until is None or date < until):
                parts += self._parts_of(date)
        if missing := sorted({*topics} - {part.topic for part in parts}):
            held = _some(sorted({part.topic for part in parts}))
            raise JobError(
                f'{self.root}: it has no record of topic "{missing[0]}" of these dates; there are'
                f" {held}"
            )
        return sorted(part for part in parts if not topics or part.topic in topics)

    def blocks(self, part: Part) -> Iterator[Block]:
        """The records of a part, encoded, in the order of their offsets."""
        import pyarrow.compute as pc

        data = self._dataset(part.date)
        end = part.last + 1
        step = max(1, (end - part.first) * self._window_rows(part.date) // part.count)
        for first in range(part.first, end, step):
            offset = pc.field("offset")
            wanted = (pc.field("topic") == part.topic) & (pc.field("partition") == part.partition)
            wanted &= (offset >= first) & (offset < first + step)
            table = data.to_table(columns=[*COLUMNS], filter=wanted)
            for batch in self._sorted(table).to_batches(max_chunksize=BLOCK_ROWS):
                yield string_block(self._encoded(batch))

    def _dataset(self, date: str) -> Dataset:
        import pyarrow as pa
        from pyarrow import dataset

        folder = self.root / f"date={date}"
        try:
            found = dataset.dataset(self._files(date), format="parquet")
        except (pa.ArrowInvalid, OSError) as error:
            raise JobError(f"{folder}: {' '.join(str(error).split())}") from None
        if missing := sorted({*COLUMNS} - {*found.schema.names}):
            raise JobError(f"{folder}: it is no archive, its files have no column {missing[0]}")
        return found

    def _files(self, date: str) -> list[str]:
        files = (self.root / f"date={date}").glob("*.parquet")
        return sorted(str(path) for path in files if path.name[0] not in "_.")

    def _parts_of(self, date: str) -> list[Part]:
        import pyarrow as pa

        found: dict[tuple[str, int], tuple[int, int, int]] = {}
        if not self._files(date):
            return []
        batches = self._dataset(date).to_batches(columns=["topic", "partition", "offset"])
        for batch in batches:
            groups = pa.Table.from_batches([batch]).group_by(["topic", "partition"])
            sums = groups.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
            for row in sums.to_pylist():
                name = (row["topic"], row["partition"])
                count, first, last = found.get(name, (0, row["offset_min"], row["offset_max"]))
                found[name] = (
                    count + row["offset_count"],
                    min(first, row["offset_min"]),
                    max(last, row["offset_max"]),
                )
        return [Part(topic, number, date, *sums) for (topic, number), sums in found.items()]

    def _window_rows(self, date: str) -> int:
        """How many records a window has at most, about."""
        rows = held = 0
        for fragment in self._dataset(date).get_fragments():
            rows += fragment.metadata.num_rows
            held += sum(group.total_byte_size for group in fragment.row_groups)
        return max(1, min(WINDOW_ROWS, WINDOW_BYTES * rows // max(1, held)))

    def _sorted(self, table: pa.Table) -> pa.Table:
        import pyarrow.compute as pc

        table = table.sort_by("offset")
        offsets = table["offset"].combine_chunks()
        twice = pc.equal(offsets[1:], offsets[:-1])
        if twice.true_count:
            at = twice.index(True).as_py()
            raise JobError(f"{self.root}: it has twice {_place(table, at)}")
        return table

    def _encoded(self, batch: pa.RecordBatch) -> pa.Array:
        for name in ("value", "headers"):
            self._check_json(batch, name)
        key, node, headers = (batch.column(name) for name in ("key", "node", "headers"))
        return _join(
            '{"data":',
            batch.column("value").fill_null("null"),
            _member("tag", string_text(key)),
            _member("node", string_text(node)),
            _member("meta", headers),
            "},",
        )

    def _check_json(self, batch: pa.RecordBatch, name: str) -> None:
        """Each text must be one JSON value, or it would break out of its record."""
        for index, text in enumerate(batch.column(name).to_pylist()):
            if text is not None:
                try:
                    _json.decode(text)
                except msgspec.DecodeError as error:
                    raise JobError(
                        f"{self.root}: {name} of {_place(batch, index)} is not JSON: {error}"
                    ) from None


def string_text(column: pa.Array) -> pa.Array:
    """JSON strings of texts, null for a null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = column.cast(pa.string())
    special = pc.match_substring_regex(column, _SPECIAL).fill_null(False)
    if special.true_count:
        escaped = [text.translate(_ESCAPES) for text in column.filter(special).to_pylist()]
        column = pc.replace_with_mask(column, special, pa.array(escaped, pa.string()))
    return _join('"', column, '"')


def _join(*parts: Any) -> pa.Array:
    """Columns and constant texts, joined row by row; null where one of them is."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, "")


def _member(name: str, texts: pa.Array) -> pa.Array:
    """``,"name":value``, or nothing for a null."""
    return _join(f',"{name}":', texts).fill_null("")


def _place(rows: Any, index: int) -> str:
    return f'topic "{rows["topic"][index]}", offset {rows["offset"][index]}'


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown or "none"
