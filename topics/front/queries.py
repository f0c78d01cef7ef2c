"""Query strings: parses the declared parameters of a route to typed values.

Unknown parameters are ignored. The last value of a repeated parameter counts, unless the parameter
is a list. A query has at most `QUERY_MAX_BYTES` and `PARAMETERS_MAX` parameters. ``?token=`` is
also found in longer queries, because a client without a key must get 401 before any other error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import parse_qs, unquote_to_bytes

from topics.errors import InvalidRequest
from topics.formats.names import NAME_MAX

QUERY_MAX_BYTES = 24 * 1024  # space for 64 of the longest names, with options and a key
PARAMETERS_MAX = 96
DIGITS_MAX = 20
# Each letter of the name may be percent-encoded.
TOKEN = re.compile(rb"(?:^|&)(?:t|%74)(?:o|%6[Ff])(?:k|%6[Bb])(?:e|%65)(?:n|%6[Ee])=([^&]*)")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Parameter(Generic[T]):
    """One parameter of a route. ``parse(name, text)`` raises `InvalidRequest`."""

    name: str
    parse: Callable[[str, str], T]
    default: T

    def of(self, values: list[str]) -> T:
        """Parse the last of the texts that a query contains for this parameter."""
        return self.parse(self.name, values[-1])


class Names(Parameter[tuple[str, ...]]):
    """A parameter that may be repeated. Its value is a tuple of the distinct values."""

    def __init__(self, name: str) -> None:
        super().__init__(name, lambda _name, value: (value,), ())

    def of(self, values: list[str]) -> tuple[str, ...]:
        """Return all distinct values in their order."""
        return tuple(dict.fromkeys(values))


class Query:
    """The parameters of one request."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[Parameter[Any], Any]) -> None:
        self._values = values

    def __getitem__(self, parameter: Parameter[T]) -> T:
        """Return the value that was sent, or the default."""
        value: T = self._values.get(parameter, parameter.default)
        return value

    def has(self, parameter: Parameter[Any]) -> bool:
        """Return whether the parameter was sent."""
        return parameter in self._values


EMPTY = Query({})


def parse_query(parameters: tuple[Parameter[Any], ...], raw: bytes) -> Query:
    """Parse the query of a route with these parameters. Raise `InvalidRequest`."""
    if len(raw) > QUERY_MAX_BYTES or raw.count(b"&") >= PARAMETERS_MAX:
        raise InvalidRequest(
            f"the query string has more than {QUERY_MAX_BYTES} bytes or {PARAMETERS_MAX} parameters"
        )
    if not raw or not parameters:
        return EMPTY
    try:
        sent = parse_qs(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidRequest("the query string cannot be read") from None
    return Query({p: p.of(sent[p.name]) for p in parameters if p.name in sent})


def find_token(raw: bytes) -> bytes | None:
    """Return the first ``token`` of a query without parsing the rest, or None."""
    found = TOKEN.search(raw)
    return unquote_to_bytes(found[1].replace(b"+", b" ")) if found else None


def text(_name: str, value: str) -> str:
    """Return the text unchanged, because any text is valid."""
    return value


def name_text(name: str, value: str) -> str:
    """Return a name or name prefix. Raise `InvalidRequest` if it is longer than any valid name.

    The check bounds memory, because the front keeps the value together with the request's head.
    """
    if len(value) > NAME_MAX:
        raise InvalidRequest(f"{name} has more than {NAME_MAX} characters", parameter=name)
    return value


def boolean(name: str, value: str) -> bool:
    """Parse ``true`` or ``false``. Raise `InvalidRequest` for other values."""
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false", parameter=name)
    return value == "true"


def integer(name: str, value: str) -> int:
    """Parse an unsigned integer. Raise `InvalidRequest` for other values."""
    if not (value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX):
        raise InvalidRequest(f"{name} must be an integer", parameter=name)
    return int(value)
