"""Progress: a line on a terminal that counts what a job has done; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOOK_S = 0.5


@contextmanager
def progress(done: Callable[[], int | None], *, quiet: bool) -> Iterator[None]:
    """Show ``done()`` records while the block runs. It is asked in a thread of its own, never after
    the block; None when it cannot tell now.
    """
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    columns = SpinnerColumn(), "{task.completed:,.0f} records", TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task, over = shown.add_task("", total=None), threading.Event()

        def look() -> None:
            while not over.wait(LOOK_S):
                if (count := done()) is not None:
                    shown.update(task, completed=count)

        thread = threading.Thread(target=look, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
