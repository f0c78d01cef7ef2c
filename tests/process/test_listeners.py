"""Listening sockets: one port for all fronts, and no second server on it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator

import pytest

from topics.process.listeners import listen, url_of

Listen = Callable[[str, int, int], list[socket.socket]]


@pytest.fixture
def listening() -> Iterator[Listen]:
    """``listen``, and the end of what it made."""
    with contextlib.ExitStack() as opened:

        def listen_for_now(host: str, port: int, count: int) -> list[socket.socket]:
            return [opened.enter_context(made) for made in listen(host, port, count)]

        yield listen_for_now


@pytest.mark.parametrize("count", [1, 3])
def test_all_listeners_have_one_port_and_take_connections(listening: Listen, count: int) -> None:
    listeners = listening("127.0.0.1", 0, count)
    assert len(listeners) == count
    assert len({each.getsockname() for each in listeners}) == 1
    with socket.create_connection(listeners[0].getsockname(), 5):
        pass
    assert not any(os.get_inheritable(each.fileno()) for each in listeners)


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("second", [1, 2])
def test_a_port_that_another_server_has_is_refused(
    listening: Listen, first: int, second: int
) -> None:
    port = listening("127.0.0.1", 0, first)[0].getsockname()[1]
    with pytest.raises(OSError, match="in use") as refused:
        listening("127.0.0.1", port, second)
    assert refused.value.errno == errno.EADDRINUSE


def test_a_name_with_addresses_of_both_kinds_means_the_ipv4_one(
    monkeypatch: pytest.MonkeyPatch, listening: Listen
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert listening("both", 0, 1)[0].family == socket.AF_INET


def test_an_unknown_host_is_an_os_error(listening: Listen) -> None:
    with pytest.raises(OSError):
        listening("256.256.256.256", 0, 1)


def test_the_url_of_a_listener_has_brackets_around_an_ipv6_address() -> None:
    class Bound(socket.socket):
        def __init__(self, *address: object) -> None:
            super().__init__()
            self.address = address

        def getsockname(self) -> tuple[object, ...]:
            return self.address

    with Bound("127.0.0.1", 4000) as four, Bound("::1", 4000, 0, 0) as six:
        assert url_of(four) == "http://127.0.0.1:4000"
        assert url_of(six) == "http://[::1]:4000"
