"""Members of a JSON object: taken out, put in and read without a change to the bytes of the others.

An object is valid JSON as a client sent it, so white space may stand anywhere and a key may have
escapes. ``b""`` stands for no object. No nesting is too deep: nothing here recurses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

# A string, or one character that matters outside of strings.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[][{}:,]', re.DOTALL)
_SPACE = b" \t\n\r"


class _Member(NamedTuple):
    """``text``: all between two commas; ``value``: as it was sent, without space around it."""

    key: str
    text: bytes
    value: bytes


def without_members(obj: bytes, drop: Callable[[str], bool]) -> bytes:
    """The object without the members whose keys ``drop`` names; b"" when none is left."""
    members = [*_members(obj)]
    kept = [member.text for member in members if not drop(member.key)]
    if not kept:
        return b""
    return obj if len(kept) == len(members) else b"{%b}" % b",".join(kept)


def with_members(obj: bytes, extra: bytes) -> bytes:
    """The object with more members at its end: ``extra`` holds them, joined by commas."""
    if not extra:
        return obj
    inner = obj[obj.find(b"{") + 1 : obj.rfind(b"}")]
    return b"{%b,%b}" % (inner, extra) if inner.strip(_SPACE) else b"{%b}" % extra


def member(obj: bytes, name: str) -> bytes | None:
    """The value of a member, the last one of that name; None without one."""
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
