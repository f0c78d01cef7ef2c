"""Header fields, and those that hold a comma-separated list (RFC 9110 §5.6.1)."""

from __future__ import annotations

Headers = tuple[tuple[bytes, bytes], ...]  # of a response: name and value

LIST_MAX = (
    64  # members that are looked at: fields are read before anybody knows whose request it is
)


def list_members(value: bytes) -> list[bytes]:
    """The members in lower case; what follows the first `LIST_MAX` is passed over."""
    return [member.strip().lower() for member in value.split(b",", LIST_MAX)[:LIST_MAX]]
