"""Authorization (§0.2): authenticates keys, checks their scopes and prefixes, and validates names.

The guard calls these functions for the HTTP requests of both planes, and WebSockets call them for
each command. Names in bodies are checked where the body is decoded, with the same rule
(`formats.names.covered`).
"""

from __future__ import annotations

import re

from topics.engine.access import ANYONE, Access, Principal, Scope
from topics.errors import Forbidden, InvalidRequest, Unauthorized
from topics.formats.api.request_heads import HeadFields
from topics.formats.names import valid_router_name, valid_topic_name
from topics.front.queries import find_token

AUTHORIZATION = b"\r\nauthorization:"
BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)")


def authenticate(access: Access, fields: HeadFields, token: bytes | None) -> Principal:
    """Return the principal of a request's key.

    ``token`` from the query is used only if there is no Authorization header. Raise `Unauthorized`
    if the key is missing or unknown. If the server has no keys, return `ANYONE`.
    """
    if not access.enabled:
        return ANYONE
    values = fields.values(b"authorization")
    if not values and token is not None:
        values = [b"Bearer " + token]
    bearer = BEARER.fullmatch(values[0]) if len(values) == 1 else None
    principal = access.authenticate(bearer[1]) if bearer is not None else None
    if principal is None:
        raise Unauthorized("a valid bearer token is required")
    return principal


def key_of(access: Access, initial_input: bytes) -> bytes | None:
    """Return the digest of the known key in the first bytes of a request, or None.

    The result only determines the order in which new clients are served. It does not authorize any
    request.
    """
    if not access.enabled:
        return None
    line, _, _ = initial_input.partition(b"\r\n")
    token = find_token(line.partition(b"?")[2].partition(b" ")[0])
    if (at := initial_input.lower().find(AUTHORIZATION)) >= 0:
        value, _, _ = initial_input[at + len(AUTHORIZATION) :].partition(b"\r\n")
        bearer = BEARER.fullmatch(value.strip(b" \t"))
        token = None if bearer is None else bearer[1]
    principal = None if token is None else access.authenticate(token)
    return None if principal is None else principal.digest


def authorize(principal: Principal, scope: Scope | None, name: str | None = None) -> None:
    """Raise `Forbidden` unless the key has the scope and its prefixes cover ``name``, the name of a
    topic or a router.
    """
    if scope is not None and not principal.allows(scope):
        lacking = str(scope.name).lower().replace("|", "+")
        raise Forbidden(f"the key lacks the scope {lacking}", scope=lacking)
    if name is not None and not principal.covers(name):
        raise Forbidden("the name is outside the key's prefixes")


def check_topic_name(name: str, **detail: str) -> None:
    """Raise `InvalidRequest` with ``detail`` if ``name`` is not a valid topic name (§1.1)."""
    if not valid_topic_name(name):
        raise InvalidRequest(
            "not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit",
            **detail,
        )


def check_router_name(name: str) -> None:
    """Raise `InvalidRequest` if ``name`` is not a valid router name (§6)."""
    if not valid_router_name(name):
        raise InvalidRequest(
            "not a router name: 1 to 255 of A-Z a-z 0-9 . _ : - >, the first a letter or digit"
        )
