"""Access: which key may do what (§0.2), by scopes and name prefixes. Of a secret only its SHA-256
digest is kept.

One entry of ``TOPICS_API_KEYS``; entries are separated by commas:

    key                     everything
    key:scopes              the scopes, any name
    key:scopes:prefixes     the scopes, names that start with one of the prefixes
    key::prefixes           all scopes, names that start with one of the prefixes

``scopes`` are joined by ``+``, ``prefixes`` by ``|``; prefixes may contain ``:``. An empty field
does not restrict; white space around an entry and empty entries are ignored. Everything else is
refused: a key must never grant more, or less, than its author meant.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import Flag
from functools import reduce
from operator import or_


class Scope(Flag):
    """What a key may do. ``Scope.READ | Scope.WRITE`` asks for both, as a queue claim does."""

    READ = 1
    WRITE = 2
    DELETE = 4
    ADMIN = 8


ALL_SCOPES = Scope.READ | Scope.WRITE | Scope.DELETE | Scope.ADMIN

_TOKENS = {
    "read": Scope.READ,
    "r": Scope.READ,
    "write": Scope.WRITE,
    "w": Scope.WRITE,
    "delete": Scope.DELETE,
    "d": Scope.DELETE,
    "admin": Scope.ADMIN,
    "a": Scope.ADMIN,
    "rw": Scope.READ | Scope.WRITE,
}
# What the name of a topic or a router can start with.
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}", re.ASCII)
_ENTRY = re.compile(rb"[^,\s](?:[^,]*[^,\s])?")
_SECRET = re.compile(rb"[\x21-\x7e]+")  # as in an Authorization header


class Principal:
    """One key, without its secret. ``digest`` names it: requests are accounted to that."""

    __slots__ = ("_mask", "digest", "prefixes", "scopes")

    def __init__(
        self, digest: bytes, scopes: Scope = ALL_SCOPES, prefixes: tuple[str, ...] | None = None
    ) -> None:
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes
        self._mask = scopes.value

    def allows(self, scope: Scope) -> bool:
        """Whether the key has every scope that is asked for."""
        return not scope.value & ~self._mask

    def covers(self, name: str) -> bool:
        """Whether the name of a topic or a router begins with one of the key's prefixes."""
        return self.prefixes is None or name.startswith(self.prefixes)


ANYONE = Principal(b"")  # every request, when no key is configured


class Access:
    """The configured keys."""

    __slots__ = ("enabled", "principals")

    def __init__(self, principals: Iterable[Principal] = ()) -> None:
        """``ValueError`` when two keys have the same secret: their rights would be ambiguous."""
        self.principals = tuple(principals)
        self.enabled = bool(self.principals)
        if len({principal.digest for principal in self.principals}) < len(self.principals):
            raise ValueError("the same key is configured twice")

    @classmethod
    def parse(cls, text: str | bytearray) -> Access:
        """Read comma-separated entries. ``ValueError`` names a bad entry by its number, never by
        its content.

        White space alone configures no key. A bytearray is read in place, and overwritten with
        zeros on every way out.
        """
        buffer = bytearray(text, "utf-8", "surrogateescape") if isinstance(text, str) else text
        try:
            entries = [found.span() for found in _ENTRY.finditer(buffer)]
            if not entries and b"," in buffer:
                raise ValueError("commas without a key")
            return cls(
                _principal(position, buffer, *span)
                for position, span in enumerate(entries, start=1)
            )
        finally:
            buffer[:] = bytes(len(buffer))

    def authenticate(self, token: bytes) -> Principal | None:
        """The key of a bearer token, or None. It is compared with every key, so that the time tells
        nothing about which one matched.
        """
        if not self.enabled:
            return ANYONE
        digest = hashlib.sha256(token).digest()
        found = None
        for principal in self.principals:
            if hmac.compare_digest(digest, principal.digest):
                found = principal
        return found


def _principal(position: int, buffer: bytearray, start: int, end: int) -> Principal:
    """One entry. The secret is hashed in place and never copied."""
    colon = buffer.find(b":", start, end)
    secret_end = end if colon < 0 else colon
    with memoryview(buffer) as view, view[start:secret_end] as secret:
        if not _SECRET.fullmatch(secret):
            raise ValueError(
                f"entry {position}: the key must be one or more visible ASCII characters"
            )
        digest = hashlib.sha256(secret).digest()
    scopes, _, prefixes = buffer[secret_end + 1 : end].decode("ascii", "replace").partition(":")
    return Principal(digest, _scopes(position, scopes), _prefixes(position, prefixes))


def _scopes(position: int, field: str) -> Scope:
    # The token is not shown: a ':' inside a secret makes the rest of it look like a scope.
    tokens = field.split("+")
    if not field:
        return ALL_SCOPES
    if any(token not in _TOKENS for token in tokens):
        known = ", ".join(_TOKENS)
        raise ValueError(
            f"entry {position}: a scope is none of {known} (joined by '+'), or the key contains ':'"
        )
    return reduce(or_, (_TOKENS[token] for token in tokens))


def _prefixes(position: int, field: str) -> tuple[str, ...] | None:
    prefixes = field.split("|")
    if not field:
        return None
    if not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise ValueError(
            f"entry {position}: a name prefix (joined by '|') is empty or starts no possible name"
        )
    return tuple(dict.fromkeys(prefixes))
