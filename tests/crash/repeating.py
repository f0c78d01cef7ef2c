"""How a campaign that found something is run again, and the cases of those who judge one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def repeated_by(program: str, **options: object) -> Iterator[None]:
    """Print the command when something is wrong."""
    try:
        yield
    except BaseException:
        told = " ".join(f"--{name} {value}" for name, value in options.items())
        print(f"repeat with: python -m tests.campaigns.{program} {told}")
        raise


def cases(table: str) -> list[Any]:
    """Name, story and what is said, of two lines each."""
    lines = table.strip().split("\n")
    heads = [head.partition(" -> ") for head in lines[::2]]
    return [
        pytest.param(story.strip(), said, id=name)
        for (name, _, said), story in zip(heads, lines[1::2], strict=True)
    ]
