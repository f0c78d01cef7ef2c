"""Fixtures of all tests of the front."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeAlias

import pytest
from structlog.processors import format_exc_info
from structlog.testing import capture_logs

Logged: TypeAlias = list[MutableMapping[str, Any]]


@pytest.fixture
def logged() -> Iterator[Logged]:
    """Return the log events of the test, tracebacks included."""
    with capture_logs(processors=[format_exc_info]) as events:
        yield events
