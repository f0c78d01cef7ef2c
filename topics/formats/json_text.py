"""JSON text of plain values, always the same bytes for the same value."""

from __future__ import annotations

from typing import Any

import msgspec


def json_string(text: str) -> bytes:
    """``text`` as a JSON string, quotes included."""
    return msgspec.json.encode(text)


def json_bytes(value: Any) -> bytes:
    """A plain value as JSON."""
    return msgspec.json.encode(value)
