"""Refused clients: they hear why, some of them linger, and the log has one line for many."""

from __future__ import annotations

import logging
import socket

import pytest

from topics.errors import Throttled
from topics.formats.api.response_heads import ResponseHeads
from topics.front.http.accepting import LINGERING_MAX, Refusals

LINE = b"x-request-id: made\r\n"
FULL = Throttled("there are too many connections", retry_after_ms=1000)


def refused(refusals: Refusals) -> tuple[socket.socket, socket.socket]:
    """The server's end of a refused client, and the client, which has sent something before."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname(), timeout=5)
        ours, _ = listener.accept()
    client.send(b"GET / HTTP/1.1\r\n")
    refusals.refuse(ours, FULL)
    return ours, client


def test_a_refused_client_reads_a_whole_answer_and_then_the_end() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    _, client = refused(refusals)
    with client:
        head, _, body = client.recv(4096).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 ")
        assert b"\r\nconnection: close" in head
        assert b"\r\nx-request-id: made\r\n" in head
        assert b'"code":"throttled"' in body
        assert client.recv(4096) == b""
        refusals.close_all()


def test_a_client_that_has_left_is_refused_without_an_error() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    ours, client = socket.socketpair()
    client.close()
    refusals.refuse(ours, FULL)
    refusals.close_all()
    assert ours.fileno() == -1


def test_a_bounded_number_of_refused_clients_lingers_until_all_are_closed() -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    pairs = [refused(refusals) for _ in range(LINGERING_MAX + 3)]
    is_open = [ours.fileno() >= 0 for ours, _ in pairs]
    assert is_open == [False] * 3 + [True] * LINGERING_MAX, "the oldest are closed first"
    refusals.close_all()
    assert all(ours.fileno() < 0 for ours, _ in pairs)
    for _, client in pairs:
        error = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        assert error == 0, "a reset may take the answer back"
        assert client.recv(4096).startswith(b"HTTP/1.1 429 ")
        client.close()


def test_the_log_has_one_line_for_all_refusals_since_the_last_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals(ResponseHeads(), lambda: LINE)
    with caplog.at_level(logging.WARNING):
        refusals.log(7)
        for reason in ("a", "a", "b"):
            refusals.note(reason)
        refusals.log(8)
        refusals.log(8)
        refusals.note("c")
        refusals.log(9)
    assert [record.getMessage() for record in caplog.records] == [
        "clients refused: b (3 since the last line, 8 open)",
        "clients refused: c (1 since the last line, 9 open)",
    ]
    assert refusals.count == 4
