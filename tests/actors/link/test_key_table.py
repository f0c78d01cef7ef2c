"""The keys that the supervisor shares with all fronts."""

from __future__ import annotations

import os
import time

import pytest

from topics.actors.link.key_table import KeyReader, KeyTable
from topics.engine.access import Access, Principal, Scope

TEXT = "full,reader:read,tenant:rw+d:t42:|shared.,admin:a:a>b"
WITHIN_S = 10.0


def rights(access: Access) -> list[tuple[bytes, Scope, tuple[str, ...] | None]]:
    return [(one.digest, one.scopes, one.prefixes) for one in access.principals]


def test_published_keys_are_read() -> None:
    access, table = Access.parse(TEXT), KeyTable()
    assert table.read()[0] == 0
    assert not table.read()[1].enabled
    table.publish(access)
    generation, found = table.read()
    assert (generation, rights(found)) == (1, rights(access))
    assert found.authenticate(b"tenant") is not None


def test_keys_that_are_too_long_change_nothing() -> None:
    table = KeyTable(half_bytes=100)
    table.publish(Access.parse("one,two"))
    with pytest.raises(ValueError, match="too long for this server"):
        table.publish(Access.parse("one,two,three"))
    generation, access = table.read()
    assert (generation, len(access.principals)) == (1, 2)


def test_a_table_has_space_for_more_keys_than_it_was_created_for() -> None:
    prefixes = "|".join(f"tenant{number}:" for number in range(50_000))
    table = KeyTable.of(Access.parse(f"one::{prefixes}"))
    table.publish(Access.parse(f"one::{prefixes},two::{prefixes}"))
    assert len(table.read()[1].principals) == 2


def test_a_reader_sees_each_change_once() -> None:
    table = KeyTable.of(Access.parse("one"))
    reader = KeyReader(table)
    assert len(reader.access.principals) == 1
    assert reader.changed() is None
    table.publish(Access.parse("one,two"))
    table.publish(Access.parse("one,two,three"))
    changed = reader.changed()
    assert changed is not None
    assert len(changed.principals) == 3
    assert reader.changed() is None


@pytest.mark.slow
def test_a_reader_never_mixes_keys_of_two_generations() -> None:
    """The keys of a generation have its number as their prefix, and each generation has more keys
    than the last one.
    """
    table = KeyTable(half_bytes=64 * 1024)
    child = os.fork()
    if child == 0:
        for number in range(1, 2001):
            count = 1 + number % 50
            one = (str(number),)
            table.publish(
                Access(Principal(bytes([key]) * 32, prefixes=one) for key in range(count))
            )
        os._exit(0)
    generation, until = 0, time.monotonic() + WITHIN_S
    while generation < 2000:
        assert time.monotonic() < until
        before, (generation, access) = generation, table.read()
        assert generation >= before
        if generation:
            prefixes = [one.prefixes for one in access.principals]
            assert prefixes == [(str(generation),)] * (1 + generation % 50)
    assert os.waitpid(child, 0)[1] == 0
