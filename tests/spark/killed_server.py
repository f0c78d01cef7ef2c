"""A server that is killed while a write is half done, and started again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.server import Server

if TYPE_CHECKING:
    import pyarrow as pa

HALF = 20  # batches of a partition


def waits_half_way(
    killed: Path,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for Spark's executors: the other half comes when ``killed`` is there."""
    half = HALF

    def wait_half_way(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            while number == half and not killed.exists():
                time.sleep(0.01)
            yield batch

    return wait_half_way


def kill_and_restart(server: Server, killed: Path, has_begun: Callable[[], object]) -> None:
    """Kill the server when ``has_begun`` returns; start it again."""
    try:
        has_begun()
        server.kill()
    finally:
        killed.touch()  # whatever happens, nobody waits for ever
    server.start()
