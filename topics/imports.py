"""Imports of libraries that import others where these are installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without(*names: str) -> Iterator[None]:
    """Import as if these packages were missing. They may be imported afterwards."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python marks it
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]
