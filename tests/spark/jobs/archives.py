"""Creation of archives with the layout of the archive job."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import write_deltalake

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
        ("epoch", pa.int64()),
        ("date", pa.date32()),
    ]
)


class Row(NamedTuple):
    """A record of an archive and its date."""

    date: str
    topic: str
    offset: int
    value: str | None
    key: str | None = None
    partition: int = 0
    node: str | None = None
    headers: str | None = None
    epoch: int | None = 1


def write_archive(
    root: Path, rows: list[Row], *, commits: int = 3, seed: int = 1, has_epochs: bool = True
) -> Path:
    """Distribute the rows over commits at random, in a random order. Earlier versions wrote tables
    without epochs.
    """
    rng = random.Random(seed)
    shares: list[list[Row]] = [[] for _ in range(commits)]
    for row in rng.sample(rows, len(rows)):
        shares[rng.randrange(commits)].append(row)
    for share in shares:
        records = [
            {
                **row._asdict(),
                "date": date.fromisoformat(row.date),
                "timestamp": datetime.fromisoformat(row.date).replace(tzinfo=UTC),
            }
            for row in share
        ]
        table = pa.Table.from_pylist(records, SCHEMA)
        table = table if has_epochs else table.drop_columns("epoch")
        write_deltalake(str(root), table, mode="append", partition_by=["date"])
    return root
