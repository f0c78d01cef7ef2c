"""JSON text of plain values. The members of an object keep the order of the dictionary."""

from __future__ import annotations

from typing import Any

import msgspec


def json_string(text: str) -> bytes:
    """Return ``text`` as a JSON string, including its quotes."""
    return msgspec.json.encode(text)


def json_bytes(value: Any) -> bytes:
    """Return a plain value as JSON."""
    return msgspec.json.encode(value)
