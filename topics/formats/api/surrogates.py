r"""Lone surrogates: ``"\ud800"`` matches the grammar of JSON, but cannot be encoded as UTF-8."""

from __future__ import annotations

import re

from topics.formats.buffers import Buffer

SEARCH_MAX_BYTES = 1 << 16  # maximum length of a searched text; the search takes up to 10 ms

# Matches everything before the first escaped surrogate that is not part of a pair.
_PAIRED = re.compile(
    rb"(?>[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F])"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*",
)
_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def lone_surrogate(text: Buffer) -> int | None:
    """Return the byte offset of the first escaped lone surrogate, or None if there is none. Texts
    above 64 KiB are not searched.
    """
    if len(text) > SEARCH_MAX_BYTES:
        return None
    found = _PAIRED.match(text)
    return found.end() if found and _HALF.match(text, found.end()) else None


def has_surrogate(text: str) -> bool:
    """Return whether a string contains a surrogate, as a command line argument does if it is not
    valid UTF-8.
    """
    return any("\ud800" <= character <= "\udfff" for character in text)
