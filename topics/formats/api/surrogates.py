r"""Lone surrogates: ``"\ud800"`` is JSON by its grammar, but no character, and has no UTF-8."""

from __future__ import annotations

import re

from topics.formats.buffers import Buffer

SEARCH_MAX_BYTES = 1 << 16  # searched in up to 10 ms

# Everything up to the first escape of one half of a pair without its other half.
_PAIRED = re.compile(
    rb"(?>[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F])"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def lone_surrogate(text: Buffer) -> int | None:
    """Byte offset of the first escaped one; None without one, and in a text above 64 KiB."""
    if len(text) > SEARCH_MAX_BYTES:
        return None
    found = _PAIRED.match(text)
    return found.end() if found and _HALF.match(text, found.end()) else None


def has_surrogate(text: str) -> bool:
    """Whether a string holds half of a pair. A command line argument that is no UTF-8 does."""
    return any("\ud800" <= character <= "\udfff" for character in text)
