"""The listening socket: one server on a port."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from topics.process.serve import listen, url_of


def test_a_listener_takes_connections_and_no_second_server_gets_its_port() -> None:
    with listen("127.0.0.1", 0) as listener:
        with socket.create_connection(listener.getsockname(), 5):
            pass
        assert not os.get_inheritable(listener.fileno())
        with pytest.raises(OSError, match="in use") as refused:
            listen("127.0.0.1", listener.getsockname()[1])
        assert refused.value.errno == errno.EADDRINUSE


def test_a_name_with_addresses_of_both_kinds_means_the_ipv4_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with listen("both", 0) as listener:
        assert listener.family == socket.AF_INET


def test_an_unknown_host_is_an_os_error() -> None:
    with pytest.raises(OSError):
        listen("256.256.256.256", 0)


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
