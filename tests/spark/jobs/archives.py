"""Archives made by hand, as the archive job lays them out."""

from __future__ import annotations

import random
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import parquet

SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("node", pa.string()),
        ("headers", pa.string()),
    ]
)


class Row(NamedTuple):
    """A record of an archive, and its date."""

    date: str
    topic: str
    offset: int
    value: str | None
    key: str | None = None
    partition: int = 0
    node: str | None = None
    headers: str | None = None


def write_archive(root: Path, rows: list[Row], *, files: int = 3, seed: int = 1) -> Path:
    """Spread the rows of each date over files at random, in a random order."""
    chance = random.Random(seed)
    by_file: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        by_file[row.date, chance.randrange(files)].append(row)
    for (date, number), some in by_file.items():
        chance.shuffle(some)
        folder = root / f"date={date}"
        folder.mkdir(parents=True, exist_ok=True)
        columns: dict[str, Any] = {
            name: [getattr(row, name) for row in some]
            for name in SCHEMA.names
            if name != "timestamp"
        }
        columns["timestamp"] = [None] * len(some)
        parquet.write_table(
            pa.table(columns, SCHEMA), folder / f"part-{number}.parquet", row_group_size=7
        )
    return root
