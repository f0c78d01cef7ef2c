"""Parts a and e of `tests.bench.retention`: one topic larger than the memory that the server may
use, and one delete that takes half of a large topic.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from array import array
from itertools import pairwise
from pathlib import Path

from tests.bench.http_load import Client, Load, append, drive, post, quantiles_ms, several, verdict
from tests.bench.processes import MemoryGroup, Sampler, cpu_s, quiet
from tests.support.server import Server

BATCH = 1000
GB = 10**9
BESIDE_RECORDS = 10_000_000


def large_topic(folder: Path, gigabytes: float) -> None:
    limit = int(gigabytes * GB / 3)
    group = MemoryGroup(limit)
    try:
        _large_topic(folder, gigabytes, limit, group)
    finally:
        group.remove()


def _large_topic(folder: Path, gigabytes: float, limit: int, group: MemoryGroup) -> None:
    server = Server(folder / "data", shards=1)
    with contextlib.ExitStack() as stack:
        with group.joined():
            stack.enter_context(server)
        client = Client(server.address)
        size = client.ask_json(append("large", BATCH)) and _state(client, "large")["bytes"]
        requests = int(gigabytes * GB / size)
        request = append("large", BATCH)
        took = drive(server.address, [Load("write", 4, several(request, requests))])
        client = Client(server.address)  # the other connection was idle for too long
        records = _state(client, "large")["head_seq"]
        size = _state(client, "large")["bytes"]
        limit_text = f"limit {limit / 1e6:,.0f} MB" if group.limited else "NO LIMIT"
        print(
            f"a  wrote {records:,} records, {size / GB:.1f} GB: {records / took:,.0f} records/s"
            f" ({limit_text})",
            flush=True,
        )
        quiet(server)
        roles = server.roles()
        for readers in (1, 2, 4):
            sampler = Sampler(server)
            sampler.start()
            before = [cpu_s(roles[role]) for role in ("shard 0", "front 0")]
            rate = read_all(server.address, "large", records, readers)
            used = [
                (cpu_s(roles[role]) - begun) / records * 1e6
                for role, begun in zip(("shard 0", "front 0"), before, strict=True)
            ]
            low, high, file_low, file_high = sampler.stop()
            flat = high - low < 50 and file_high < limit / 1e6
            print(
                f"a  read by {readers}: {rate:,.0f} records/s {verdict(rate >= 1e6)}, CPU"
                f" {used[0]:.2f} + {used[1]:.2f} ms; "
                f"anonymous {low:.0f}-{high:.0f} MB, mapped {file_low:.0f}-{file_high:.0f} MB"
                f" {verdict(flat)}",
                flush=True,
            )
        p50, p99, p999, worst = appends_beside_a_reader(
            server.address, min(records, BESIDE_RECORDS)
        )
        print(
            f"a  appends beside one reader: p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f}, worst"
            f" {worst:.1f} ms",
            flush=True,
        )
    floor_read, floor_write = raw_cost(folder)
    sent = bare_answers(4000, 256 * BATCH) * BATCH
    print(
        f"a  beside: read() of the same files {floor_read:,.0f} MB/s, write of 1 GB"
        f" {floor_write:,.0f} MB/s, "
        f"bare answers {sent:,.0f} records/s",
        flush=True,
    )


def read_all(address: tuple[str, int], topic: str, records: int, readers: int) -> float:
    """Records a second; each reader has a process and a part of the topic of its own, and goes on
    from ``next_from_seq``.
    """
    bounds = [records * part // readers // BATCH * BATCH for part in range(readers)] + [records]
    children = []
    began = time.perf_counter()
    for start, end in pairwise(bounds):
        child = os.fork()
        if not child:
            _read_part(address, topic, start, end)
        children.append(child)
    assert not any(os.waitpid(child, 0)[1] for child in children), "a reader failed"
    return records / (time.perf_counter() - began)


def _read_part(address: tuple[str, int], topic: str, seq: int, end: int) -> None:
    code = 1
    try:
        client, path = Client(address), f"/v0/topics/{topic}/diff"
        while seq < end:
            body = client.ask(post(path, b'{"from_seq":%d,"limit":%d}' % (seq, BATCH)))
            tail = bytes(body[-400:])
            at = tail.index(b'"next_from_seq":') + len(b'"next_from_seq":')
            following = int(tail[at : tail.index(b",", at)])
            assert following == min(seq + BATCH, end) or following > end, (seq, following)
            seq = following
        code = 0
    finally:
        os._exit(code)


def appends_beside_a_reader(address: tuple[str, int], records: int) -> list[float]:
    """How long small appends to another topic of the shard take, some hundred a second, while
    records are read that are not in memory.
    """
    client, request, seconds = (
        Client(address),
        append("small", 1, b'{"durability":"ephemeral","cap_records":1000}'),
        array("d"),
    )
    child = os.fork()
    if not child:
        _read_part(address, "large", 0, records)
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        began = time.perf_counter()
        client.ask(request)
        seconds.append(time.perf_counter() - began)
        time.sleep(0.002)
    assert not ended[1], "the reader failed"
    return quantiles_ms(seconds)


def raw_cost(folder: Path) -> tuple[float, float]:
    buffer, total, began = bytearray(1 << 20), 0, time.perf_counter()
    for path in sorted((folder / "data/segment/00").glob("*.seg"))[:40]:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    read, began = total / (time.perf_counter() - began) / 1e6, time.perf_counter()
    with (folder / "raw").open("wb", buffering=0) as file:
        for _ in range(1000):
            file.write(buffer[:1000000])
        os.fdatasync(file.fileno())
    written = 1000 / (time.perf_counter() - began)
    (folder / "raw").unlink()
    return read, written


def bare_answers(count: int, size: int) -> float:
    """Answers of so many bytes a second that a process gets from another, one at a time."""
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if not child:
        sock, _ = listener.accept()
        answer = bytes(size)
        while sock.recv(1024):
            sock.sendall(answer)
        os._exit(0)
    buffer = memoryview(bytearray(1 << 20))
    with socket.create_connection(listener.getsockname()) as sock:
        began = time.perf_counter()
        for _ in range(count):
            sock.sendall(b"next")
            left = size
            while left:
                left -= sock.recv_into(buffer)
        took = time.perf_counter() - began
    listener.close()
    os.waitpid(child, 0)
    return count / took


# One delete that takes half of a topic

DELETED_RECORDS = 1_500_000
LARGE_BATCH = 10_000


def large_delete(server: Server) -> None:
    """Delete 1.5 M of 3 M records by tag while another topic of the shard is appended to. Prints
    what the delete took, and the longest wait of the appends.
    """
    records = 2 * DELETED_RECORDS
    rows = b'{"data":%b,"tag":"old"},{"data":%b,"tag":"new"}' % ((b'"%b"' % (b"x" * 60),) * 2)
    body = b'{"records":[%b]}' % b",".join([rows] * (LARGE_BATCH // 2))
    request = post("/v0/topics/halved?return_seqs=false", body)
    drive(server.address, [Load("write", 2, several(request, records // LARGE_BATCH))])
    beside = append("beside", 1)
    Client(server.address).ask(beside)
    waits = array("d")
    refused: list[str] = []
    over = threading.Event()

    def append_beside() -> None:
        while not over.is_set():
            with contextlib.suppress(AssertionError, OSError):  # refused, and hung up
                client = Client(server.address)
                while not over.is_set():
                    began = time.perf_counter()
                    refused.append("append")
                    client.ask(beside)
                    refused.pop()
                    waits.append(time.perf_counter() - began)
                    time.sleep(0.001)

    thread = threading.Thread(target=append_beside)
    thread.start()
    time.sleep(0.5)
    before, began, deleted = cpu_s(server.roles()["shard 0"]), time.perf_counter(), 0
    try:
        request = post("/v0/topics/halved/delete", b'{"match":"old"}')
        deleted = Client(server.address).ask_json(request)["deleted"]
    except AssertionError:
        refused.append("delete")
    took, used = time.perf_counter() - began, cpu_s(server.roles()["shard 0"]) - before
    time.sleep(0.5)
    over.set()
    thread.join()
    print(
        f"e  deleted {deleted:,} of {records:,} records in {took:.2f} s, shard CPU"
        f" {used:.2f} s; {len(waits):,} appends beside it, longest wait {max(waits) * 1000:.0f} ms"
        f" {verdict(max(waits) < 0.05)}, refused {len(refused)} {verdict(not refused)}",
        flush=True,
    )


def _state(client: Client, topic: str) -> dict[str, int]:
    request = f"GET /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    return client.ask_json(request)  # type: ignore[no-any-return]
