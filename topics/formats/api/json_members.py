"""Members of a JSON object: removes, adds and reads members without changing the bytes of others.

An object is valid JSON as a client sent it, so it may contain white space between tokens, and
escapes in keys. ``b""`` means that there is no object. Any nesting depth is supported, because
these functions are not recursive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

# A string, or a structural character.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}:,]', re.DOTALL)
_SPACE = b" \t\n\r"


class _Member(NamedTuple):
    """``text`` is everything between two commas. ``value`` is the value without white space around
    it.
    """

    key: str
    text: bytes
    value: bytes


def without_members(obj: bytes, drop: Callable[[str], bool]) -> bytes:
    """Return the object without the members for whose keys ``drop`` returns true, or b"" if no
    members remain.
    """
    members = [*_members(obj)]
    kept = [member.text for member in members if not drop(member.key)]
    if not kept:
        return b""
    return obj if len(kept) == len(members) else b"{%b}" % b",".join(kept)


def with_members(obj: bytes, extra: bytes) -> bytes:
    """Return the object with the members ``extra``, joined by commas, added at its end."""
    if not extra:
        return obj
    inner = obj[obj.find(b"{") + 1 : obj.rfind(b"}")]
    return b"{%b,%b}" % (inner, extra) if inner.strip(_SPACE) else b"{%b}" % extra


def member(obj: bytes, name: str) -> bytes | None:
    """Return the value of the last member with this name, or None if there is none."""
    found = None
    for each in _members(obj):
        if each.key == name:
            found = each.value
    return found


def _members(obj: bytes) -> Iterator[_Member]:
    depth, start, key, colon = 0, 0, "", 0
    for token in _TOKEN.finditer(obj):
        first = obj[token.start()]
        if first in b"{[":
            depth += 1
            if depth == 1:
                start = token.end()
        elif depth == 1 and first == ord('"') and not colon:
            key = msgspec.json.decode(token[0], type=str)
        elif depth == 1 and first == ord(":"):
            colon = token.end()
        elif depth == 1 and first in b",}" and colon:
            end = token.start()
            yield _Member(key, obj[start:end], obj[colon:end].strip(_SPACE))
            start, colon = token.end(), 0
        if first in b"}]":
            depth -= 1
