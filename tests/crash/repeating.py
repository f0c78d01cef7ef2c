"""How a campaign that found something is run again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def repeated_by(program: str, **options: object) -> Iterator[None]:
    """Print the command when something is wrong."""
    try:
        yield
    except BaseException:
        told = " ".join(f"--{name} {value}" for name, value in options.items())
        print(f"repeat with: python -m tests.campaigns.{program} {told}")
        raise
