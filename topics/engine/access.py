"""Access: the permissions of API keys (§0.2), by scopes and name prefixes. Only the SHA-256 digest
of a secret is stored.

One entry of ``TOPICS_API_KEYS``; entries are separated by commas:

    key                     all scopes, any name
    key:scopes              the scopes, any name
    key:scopes:prefixes     the scopes, names that start with one of the prefixes
    key::prefixes           all scopes, names that start with one of the prefixes

``key`` is a secret, or ``sha256:`` and the 64 hex digits of its digest. ``scopes`` are joined by
``+``, ``prefixes`` by ``|``; prefixes may contain ``:``. An empty field does not restrict. White
space around an entry and empty entries are ignored. All other input is rejected, because a key must
never grant more, or less, than its author intended.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from enum import Flag
from functools import reduce
from operator import or_

from topics.formats.names import covered


class Scope(Flag):
    """A set of permissions. ``Scope.READ | Scope.WRITE`` requires both, as for a queue claim."""

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
# Number of hex digits in the alias that identifies a key in logs.
ALIAS_DIGITS = 8
HASHED = b"sha256:"
_ENTRY = re.compile(rb"[^,\s](?:[^,]*[^,\s])?")
_SECRET = re.compile(rb"[\x21-\x7e]+")  # the characters that an Authorization header can carry
_DIGEST = re.compile(rb"sha256:([0-9A-Fa-f]{64})(?=:|\Z)")
_TOKEN = rb"(?:%s)" % b"|".join(token.encode() for token in _TOKENS)
_SCOPES = re.compile(rb"%b(?:\+%b)*" % (_TOKEN, _TOKEN))
# A possible beginning of the name of a topic or a router.
_PREFIX = rb"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}"
_PREFIXES = re.compile(rb"%b(?:\|%b)*" % (_PREFIX, _PREFIX))


class Principal:
    """The permissions of one key, without its secret.

    ``digest`` identifies the key. ``is_admin``: the key has the scope ADMIN.
    """

    __slots__ = ("_mask", "alias", "digest", "is_admin", "prefixes", "scopes")

    def __init__(
        self,
        digest: bytes,
        scopes: Scope = ALL_SCOPES,
        prefixes: tuple[str, ...] | None = None,
    ) -> None:
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes
        self._mask = scopes.value
        self.is_admin = self.allows(Scope.ADMIN)
        # The key's name in logs: a digest of ``digest``, because ``digest`` itself would allow an
        # offline guess of the secret. Empty if no key is configured.
        self.alias = hashlib.sha256(digest).hexdigest()[:ALIAS_DIGITS] if digest else ""

    def allows(self, scope: Scope) -> bool:
        """Return whether the key has all scopes in ``scope``."""
        return not scope.value & ~self._mask

    def covers(self, name: str) -> bool:
        """Return whether the name of a topic or a router starts with one of the key's prefixes."""
        return self.prefixes is None or covered(name, self.prefixes)

    def has_rights_of(self, other: Principal) -> bool:
        """Return whether both keys have the same scopes and prefixes, regardless of the order."""
        if self.prefixes is None or other.prefixes is None:
            same_names = self.prefixes is other.prefixes
        else:
            same_names = {*self.prefixes} == {*other.prefixes}
        return same_names and self.scopes == other.scopes


ANYONE = Principal(b"")  # the principal of every request if no key is configured


class Access:
    """The configured keys."""

    __slots__ = ("_by_digest", "enabled", "principals")

    def __init__(self, principals: Iterable[Principal] = ()) -> None:
        """Raise ``ValueError`` if two keys have the same secret, because their rights would be
        ambiguous.
        """
        self.principals = tuple(principals)
        self.enabled = bool(self.principals)
        self._by_digest = {principal.digest: principal for principal in self.principals}
        if len(self._by_digest) < len(self.principals):
            raise ValueError("the same key is configured twice")

    @classmethod
    def parse(cls, text: str | bytearray) -> Access:
        """Parse comma-separated entries.

        Raise ``ValueError`` for an invalid entry. The message contains its number, never its
        content. White space alone configures no key. A bytearray is read in place, and is
        overwritten with zeros on success and on failure.
        """
        buffer = bytearray(text, "utf-8", "surrogateescape") if isinstance(text, str) else text
        try:
            entries = [found.span() for found in _ENTRY.finditer(buffer)]
            if not entries and b"," in buffer:
                raise ValueError("only commas, no key")
            return cls(
                _principal(position, buffer, *span)
                for position, span in enumerate(entries, start=1)
            )
        finally:
            buffer[:] = bytes(len(buffer))

    def authenticate(self, token: bytes) -> Principal | None:
        """Return the configured key that a bearer token contains, or None if no key matches.

        If no key is configured, return `ANYONE`. The token is compared with every key in constant
        time, so that the response time does not reveal which key matched.
        """
        if not self.enabled:
            return ANYONE
        digest = hashlib.sha256(token).digest()
        found = None
        for principal in self.principals:
            if hmac.compare_digest(digest, principal.digest):
                found = principal
        return found

    def current(self, principal: Principal) -> Principal | None:
        """Return the current permissions of a key that was authenticated earlier, or None if the
        key has been removed.

        Do not use this for tokens from clients, because the lookup does not take constant time.
        """
        return self._by_digest.get(principal.digest) if self.enabled else ANYONE


def digest_of(secret: bytes | bytearray | memoryview) -> bytes:
    """Return the digest of a secret. Raise ``ValueError`` if no Authorization header can carry
    it.
    """
    if not _SECRET.fullmatch(secret):
        raise ValueError("the key must be one or more visible ASCII characters")
    return hashlib.sha256(secret).digest()


# The functions below parse an entry in place. They copy a field only if it is certain that the
# field contains no secret.


def _principal(position: int, buffer: bytearray, start: int, end: int) -> Principal:
    """Parse one entry."""
    if buffer.startswith(HASHED, start, end):
        digest, key_end = _hashed(position, buffer, start, end)
    else:
        digest, key_end = _digest_of_secret(position, buffer, start, end)
    scopes_start = min(key_end + 1, end)
    colon = buffer.find(b":", scopes_start, end)
    scopes_end = end if colon < 0 else colon
    scopes = _scopes(position, buffer, scopes_start, scopes_end)
    prefixes = _prefixes(position, buffer, min(scopes_end + 1, end), end)
    return Principal(digest, scopes, prefixes)


def _hashed(position: int, buffer: bytearray, start: int, end: int) -> tuple[bytes, int]:
    """Parse the digest of an entry. Return the digest and the end of the field."""
    found = _DIGEST.match(buffer, start, end)
    if found is None:
        raise ValueError(f"entry {position}: 'sha256:' is not followed by exactly 64 hex digits")
    return bytes.fromhex(found[1].decode()), found.end()


def _digest_of_secret(position: int, buffer: bytearray, start: int, end: int) -> tuple[bytes, int]:
    """Hash the secret of an entry. Return the digest and the end of the field."""
    colon = buffer.find(b":", start, end)
    secret_end = end if colon < 0 else colon
    with memoryview(buffer) as view, view[start:secret_end] as secret:
        try:
            return digest_of(secret), secret_end
        except ValueError as error:
            raise ValueError(f"entry {position}: {error}") from None


def _scopes(position: int, buffer: bytearray, start: int, end: int) -> Scope:
    """Parse the scopes of an entry."""
    if start == end:
        return ALL_SCOPES
    # The message does not contain the token. If a secret contains ':', the rest of it is parsed as
    # a scope.
    if not _SCOPES.fullmatch(buffer, start, end):
        known = ", ".join(_TOKENS)
        raise ValueError(
            f"entry {position}: a scope is not one of {known} (joined by '+'),"
            " or the key contains ':'"
        )
    tokens = buffer[start:end].decode().split("+")
    return reduce(or_, (_TOKENS[token] for token in tokens))


def _prefixes(position: int, buffer: bytearray, start: int, end: int) -> tuple[str, ...] | None:
    """Parse the name prefixes of an entry. Return None if there are none."""
    if start == end:
        return None
    if not _PREFIXES.fullmatch(buffer, start, end):
        raise ValueError(
            f"entry {position}: a name prefix (joined by '|') is empty,"
            " or no valid name starts with it"
        )
    return tuple(dict.fromkeys(buffer[start:end].decode().split("|")))
