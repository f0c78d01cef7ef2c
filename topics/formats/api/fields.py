"""Header fields: the fields of a request head, response headers, and fields that hold a
comma-separated list (RFC 9110 §5).
"""

from __future__ import annotations

from collections.abc import Sequence

Headers = tuple[tuple[bytes, bytes], ...]  # of a response: name and value

LIST_MAX = 64  # members that are parsed: fields are read before the client is authenticated


def list_members(value: bytes) -> list[bytes]:
    """The members of a list in lower case; everything after the first `LIST_MAX` is ignored."""
    return [member.strip().lower() for member in value.split(b",", LIST_MAX)[:LIST_MAX]]


class HeadFields:
    """The fields of a request head by lower-case name; a repeated field keeps all its values."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Sequence[tuple[bytes, bytes]]) -> None:
        self._fields = fields

    def __len__(self) -> int:
        return len(self._fields)

    def values(self, name: bytes) -> list[bytes]:
        """All values of the field, in order."""
        return [value for field, value in self._fields if field == name]

    def without(self, name: bytes) -> HeadFields:
        """All other fields."""
        return HeadFields([field for field in self._fields if field[0] != name])

    def forget(self) -> None:
        """Keep none of them: they may be long, and a stream lasts for days."""
        self._fields = ()

    def joined(self, name: bytes) -> bytes:
        """Repeated fields as one list (RFC 9110 §5.3); empty when the field is absent."""
        return b",".join(self.values(name))
