r"""Lone surrogates: ``"\ud800"`` follows JSON's grammar, stands for no character and has no UTF-8."""

from __future__ import annotations

import re

SEARCH_MAX_BYTES = 1 << 16  # a search takes up to 10 ms of somebody's loop

# Everything up to the first escape of one half of a pair without its other half.
_PAIRED = re.compile(
    rb"(?>[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F])"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def lone_surrogate(text: bytes | bytearray | memoryview) -> int | None:
    """Where the first escaped one stands, in bytes; None without one, and in a text above 64 KiB."""
    if len(text) > SEARCH_MAX_BYTES:
        return None
    found = _PAIRED.match(text)
    return found.end() if found and _HALF.match(text, found.end()) else None


def has_surrogate(text: str) -> bool:
    """Whether a string holds half of a pair, as an argument does that is not UTF-8."""
    return any("\ud800" <= character <= "\udfff" for character in text)
