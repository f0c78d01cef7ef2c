"""The arithmetic that the programs in ``tests/bench`` rely on."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench import soak
from tests.bench.peers import beanstalkd, nats, redis
from tests.bench.peers.load import MARK, RECORD, Stream
from tests.bench.peers.replies import BadReply, Http, Marks, Reply
from tests.bench.report import Results, Runs, grid, nothing, page, rates, ratios
from tests.bench.soak_load import END, Reader, Soak
from tests.support.server import Server

SAMPLE_S = 0.2
ENTRY = b"*2\r\n$15\r\n1700000000000-%d\r\n*2\r\n$1\r\nd\r\n$200\r\n" + RECORD + b"\r\n"
ENTRIES = ENTRY % 1 + ENTRY % 2
MESSAGE = b"MSG inbox.1 1 4\r\nab\r\n\r\n"
REPLIES: dict[str, tuple[Callable[[], Reply], bytes]] = {
    "http": (Http, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"),
    "http, empty": (Http, b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n"),
    "http, chunks": (
        Http,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n0\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    ),
    "redis, two ids": (lambda: Marks(b"\r\n", 4, bad=b"-"), b"$3\r\n1-1\r\n$3\r\n1-2\r\n"),
    "redis, range": (redis.Page, b"*2\r\n" + ENTRIES),
    "redis, stream": (redis.Page, b"*1\r\n*2\r\n$5\r\nbench\r\n*2\r\n" + ENTRIES),
    "redis, nothing": (redis.Page, b"*0\r\n"),
    "nats, two answers": (lambda: nats.Messages(2), b"+OK\r\n" + MESSAGE * 2),
    "nats, batch": (
        nats.Batch,
        MESSAGE + b"HMSG got 1 16 16\r\nNATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n\r\n",
    ),
    "beanstalkd, two reserves": (
        lambda: beanstalkd.Reserved(2),
        b"RESERVED 12 3\r\nabc\r\nTIMED_OUT\r\n",
    ),
}


@pytest.mark.parametrize("name", REPLIES)
def test_a_reply_ends_with_its_last_byte_for_any_fragmentation(name: str) -> None:
    make, data = REPLIES[name]
    bodies = set()
    for at in range(1, len(data)):
        reply = make()
        for _ in range(2):
            assert not reply.feed(data[:at]), at
            assert reply.feed(data[at:]), at
            bodies.add(reply.body)
    reply = make()
    assert [reply.feed(bytes([byte])) for byte in data] == [False] * (len(data) - 1) + [True]
    assert bodies == {reply.body}


def test_chunks_are_joined() -> None:
    make, data = REPLIES["http, chunks"]
    reply = make()
    assert reply.feed(data)
    assert reply.body == b"0\r\nab"


@pytest.mark.parametrize(
    ("reply", "data"),
    [
        (Http(), b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
        (Http(bad=b"[false"), b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n[false]"),
        (Marks(b"\r\n", bad=b"-"), b"-ERR\r\n"),
        (Marks(b"\r\n", 4, bad=b"-"), b"$3\r\n1-1\r\n-ERR no\r\n"),
    ],
)
def test_a_refusal_is_not_counted_as_a_success(reply: Reply, data: bytes) -> None:
    with pytest.raises(BadReply):
        reply.feed(data)


@pytest.mark.parametrize("size", [1, 7, 300])
def test_a_subscriber_counts_each_record_once(size: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream, count = Stream(ours), 0
        data = b"".join(b"data: %b\n\n" % RECORD for _ in range(3))
        for at in range(0, len(data), size):
            theirs.sendall(data[at : at + size])
            count += stream.take()
    assert count == 3 == data.count(MARK)


def runs(*values: float, wrong: str = "") -> Runs:
    return {"values": [*values], "cpu_us": [], "wrong": [wrong] if wrong else []}


def measured() -> Results:
    results = nothing()
    results["versions"] = {"topics": "1", "redis": "7.0", "nats": "2"}
    results["cells"] = {
        "live 1, ms": {"topics": runs(2.0), "redis": runs(1.0)},
        "append fsync 1 x 1": {
            "topics": runs(3000, 1000, 2500),
            "redis": runs(1250, wrong="holds 1, 2 expected"),
            "nats": runs(),
        },
    }
    return results


def test_a_ratio_above_one_is_better_for_rates_and_for_delays() -> None:
    assert ratios(measured()) == [
        ["", "redis", "nats"],
        ["append fsync 1 x 1", "2.00", ""],
        ["live 1, ms", "0.50", ""],
    ]


def test_rates_are_medians_with_the_spread_of_our_runs() -> None:
    assert rates(measured())[1] == ["append fsync 1 x 1", "2,500", "1,250", "", "80%"]


def test_the_page_reports_counts_that_did_not_match() -> None:
    assert "- append fsync 1 x 1, redis: holds 1, 2 expected\n" in page(measured())
    assert "has not been measured" in page(nothing())


def test_a_table_aligns_its_figures_to_the_right() -> None:
    assert grid([["", "a"], ["x", "10"]]) == "|   |  a |\n|---|---:|\n| x | 10 |"


@pytest.mark.slow
def test_a_short_soak_loses_no_record_in_a_stop_and_a_kill(tmp_path: Path) -> None:
    state, samples = soak.run(
        tmp_path / "data",
        minutes=6 * SAMPLE_S / 60,
        restart_every=2 * SAMPLE_S / 60,
        load=0.3,
        out=tmp_path / "soak.svg",
        fill_mb=4,
        calibrate_s=SAMPLE_S,
        sample_s=SAMPLE_S,
    )
    assert not state.problems
    assert (len(samples.samples), len(samples.restarts)) == (6, 2)
    assert all(state.counts[name] for name in ("records", "seen", "jobs", "dead letters"))
    ElementTree.parse(tmp_path / "soak.svg")


@pytest.mark.parametrize(
    ("shown", "uncertain", "problem"),
    [
        ([0, 1, 2], [], ""),
        ([0, 2], [1], ""),
        ([0, 1], [2], ""),
        ([0, 2], [], "record 2 received, 1 expected"),
        ([0, 1, 1, 2], [], "record 1 received, 2 expected"),
        ([0, 1], [], "record 3 received, 2 expected"),
    ],
)
def test_a_reader_reports_a_lost_or_duplicated_record(
    shown: list[int], uncertain: list[int], problem: str, tmp_path: Path
) -> None:
    server = Server(tmp_path)
    server.port = 1
    state = Soak(server)
    state.next["disk"], state.uncertain = 3, {("disk", number) for number in uncertain}
    reader = Reader(state, "disk")
    for number in shown:
        assert reader.take(number, 0.0, "")
    assert not reader.take(END, 0.0, "")
    assert [text.partition(": ")[2] for text in state.problems][:1] == [problem][: bool(problem)]


def test_growth_from_the_second_third_to_the_last_is_reported() -> None:
    steady, leak = [100.0, 200, 200, 200, 210, 210], [100.0, 200, 200, 200, 230, 230]
    lines = {soak.MEMORY: {"front": steady, "shard": leak}, soak.P50: {"appends": leak}}
    medians = soak.thirds(lines)
    assert medians[soak.MEMORY, "shard"] == [150.0, 200.0, 230.0]
    assert soak.grown(medians) == [
        "resident memory, MB, shard: 230.0 in the last third, 200.0 before"
    ]
