"""Shows the number of processed records on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

UPDATE_S = 0.5


@contextmanager
def progress(done: Callable[[], int | None], *, quiet: bool) -> Iterator[None]:
    """Show the number that ``done`` returns while the block runs. A separate thread calls ``done``,
    but never after the block has ended. None means that the number is unknown.
    """
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    columns = SpinnerColumn(), "{task.completed:,.0f} records", TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task, over = shown.add_task("", total=None), threading.Event()

        def update() -> None:
            while not over.wait(UPDATE_S):
                if (count := done()) is not None:
                    shown.update(task, completed=count)

        thread = threading.Thread(target=update, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
