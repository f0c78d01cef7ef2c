"""Print the command that repeats a failed campaign."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def print_repeat_command(program: str, **options: object) -> Iterator[None]:
    """Print the command that repeats the campaign if the block raises."""
    try:
        yield
    except BaseException:
        arguments = " ".join(f"--{name} {value}" for name, value in options.items())
        print(f"repeat with: python -m tests.campaigns.{program} {arguments}")
        raise
