"""Query strings: tokens and bounds."""

from __future__ import annotations

import pytest

from tests.support.front import running
from topics.errors import InvalidRequest
from topics.front.queries import (
    PARAMETERS_MAX,
    QUERY_MAX_BYTES,
    Parameter,
    boolean,
    find_token,
    integer,
    parse_query,
    text,
)

TOUCH = Parameter("touch", boolean, default=True)
PREFIX = Parameter("prefix", text, default="")


def test_declared_parameters_are_parsed_and_others_are_ignored() -> None:
    query = parse_query((TOUCH, PREFIX), b"prefix=a&later=%31&prefix=b%2B+")
    assert query[TOUCH] is True
    assert query[PREFIX] == "b+ ", "the last value was not used"
    assert parse_query((TOUCH,), b"touch=false")[TOUCH] is False


@pytest.mark.parametrize("raw", [b"touch=1", b"touch=", b"prefix=%ff", b"touch=\xff"])
def test_a_query_that_cannot_be_parsed_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_query((TOUCH, PREFIX), raw)


@pytest.mark.parametrize("value", ["", "x", "-1", "+1", "1.0", "1_0", "\u0663", " 1", "1" * 21])
def test_an_integer_consists_only_of_digits(value: str) -> None:
    assert integer("max", "18446744073709551615") == 2**64 - 1
    with pytest.raises(InvalidRequest) as raised:
        integer("max", value)
    assert raised.value.detail == {"parameter": "max"}


@pytest.mark.parametrize(
    ("query", "token"),
    [
        *((b"token=k", b"k"), (b"a&token=%6b&token=2", b"k"), (b"token=", b"")),
        *((b"token=%C3%A9+", b"\xc3\xa9 "), (b"atoken=k&token", None)),
        *((b"%74oken=k&token=2", b"k"), (b"a&t%6f%6B%65%6E=%6b", b"k"), (b"%5btoken=k", None)),
        *((b"", None), (b"a&" * 30_000 + b"token=k", b"k")),
    ],
)
def test_a_token_is_found_at_any_position(query: bytes, token: bytes | None) -> None:
    assert find_token(query) == token


TOO_MUCH = ["a&" * PARAMETERS_MAX, "a" * (QUERY_MAX_BYTES + 1)]


@pytest.mark.parametrize("query", TOO_MUCH, ids=["parameters", "bytes"])
@pytest.mark.parametrize(
    "path", ["/v0/topics/a", "/v0/topics", "/v0/watch/w", "/v0/ws", "/v0/health"]
)
async def test_without_a_key_a_query_that_is_too_long_gets_401(query: str, path: str) -> None:
    async with running(keys="sesame") as run:
        client = await run.connect()
        if path != "/v0/health":
            assert (await client.request("GET", f"{path}?{query}")).code == "unauthorized"
        answer = await client.request("GET", f"{path}?{query}", authorization="Bearer sesame")
        assert (answer.status, answer.code) == (400, "invalid_request")
