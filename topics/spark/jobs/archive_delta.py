"""Delta: batches of an archive as commits of a Delta table, by the package ``deltalake``.

A commit carries the number of its batch as an application transaction: the table itself knows which
batch it has, so a batch that Spark repeats is not written again. A crash before the commit leaves
files that no reader of Delta sees. A batch is collected on the driver as Arrow, so its size is
bounded by the number of records in a batch; the table is made by no jar and no JVM of Delta's own.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from topics.spark.errors import JobError
from topics.spark.jobs.archive_files import dated, repeated
from topics.spark.jobs.archive_state import Figure, Manifest, State, add_figures
from topics.spark.jobs.files import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def check_installed() -> None:
    """Raise `JobError` without the package."""
    if find_spec("deltalake") is None:
        raise JobError("deltalake is not installed: pip install 'topics-engine[delta]'")


class ArchiveDelta:
    """The sink of an archive that is a Delta table. ``land`` takes the batches of one query."""

    def __init__(self, files: Files) -> None:
        check_installed()
        self._files = files
        self._state = State(files)
        self._uri = files.uri("").removeprefix("file://").rstrip("/")  # a URI would be unescaped

    def land(self, df: DataFrame, batch: int, query: str) -> list[Figure]:
        """Commit a batch, unless the table has it; return its figures."""
        last = self._state.last()
        if last is not None and last.batch >= batch:
            return repeated(last, batch, self._files.uri(""))
        table = dated(df).toArrow()
        if table.num_rows and not self._holds(query, batch):
            self._append(table, batch, query)
        figures = figures_in(table)
        totals = add_figures([*(last.totals if last else []), *figures])
        self._state.commit(Manifest(batch, query, [], figures, totals))
        return figures

    def uris(self) -> list[str]:
        """The files that the table consists of."""
        table = self._table()
        uris = [] if table is None else list(table.file_uris())
        # Names of local files come escaped, and Spark takes names as they are.
        return [unquote(uri) if uri.startswith(("/", "file:")) else uri for uri in uris]

    def _append(self, table: pa.Table, batch: int, query: str) -> None:
        from deltalake import CommitProperties, Transaction, WriterProperties, write_deltalake

        order = [(name, "ascending") for name in ("date", "topic", "partition", "offset")]
        write_deltalake(
            self._uri,
            table.sort_by(order),
            partition_by=["date"],
            mode="append",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(app_id=query, version=batch)]
            ),
            writer_properties=WriterProperties(compression="ZSTD"),
            storage_options=storage_options(),
        )

    def _holds(self, query: str, batch: int) -> bool:
        table = self._table()
        version = None if table is None else table.transaction_version(query)
        return version is not None and version >= batch

    def _table(self) -> Any:
        from deltalake import DeltaTable

        options = storage_options()
        if not DeltaTable.is_deltatable(self._uri, storage_options=options):
            return None
        return DeltaTable(self._uri, storage_options=options)


def storage_options() -> dict[str, str]:
    """What the environment says about object stores."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def figures_in(table: pa.Table) -> list[Figure]:
    """The figures of a batch."""
    grouped = table.group_by(["partition", "topic"]).aggregate(
        [("offset", "count"), ("offset", "min"), ("offset", "max")]
    )
    return add_figures(
        Figure(
            row["partition"],
            row["topic"],
            row["offset_count"],
            row["offset_min"],
            row["offset_max"],
        )
        for row in grouped.to_pylist()
    )
