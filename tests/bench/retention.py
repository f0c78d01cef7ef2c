"""Much data and many topics, against a real server over HTTP: ``python -m tests.bench.retention
[--only abcd] [--gb 1]``.

    a  a topic of so many GB (records of 200 bytes), written 1,000 a request and read from its start
    by 1,000, while the server lives
       under a memory limit of a third of it: >= 1,000,000 records/s, and memory stays flat; then
       what appends to another topic of the shard take beside a reader
    b  10,000 topics written in turn: >= 50 % of the throughput of one topic, with the same batches
    in the same run c  start after a clean stop with 10 M records in segments: <= 3 s until it is
    ready d  delete of one tag among a million in one topic: <= 5 ms, Eq and Glob, in the log and in
    segments

The limit is a memory cgroup (v1, or v2 where it is mounted alone) when this may make one, and it
counts the page cache of the server's files, too; without, memory is only sampled. Beside a: reading
the same files with ``read``, writing as many bytes to a file, and one process that sends as long
answers to another. The clients take part of the same cores: ``CPU`` is what shard and front need
for 1,000 records, so that what waits for other processes of the machine can be told. Larger topics
need room: a takes 1.3 times its GB.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from tests.bench.http_load import (
    Client,
    Load,
    TaggedAppends,
    append,
    drive,
    post,
    quantiles_ms,
    round_robin,
    several,
    verdict,
)
from tests.server import Server

BATCH = 1000
GB = 10**9
TAGS = 1_000_000
BESIDE_RECORDS = 10_000_000


class MemoryGroup:
    """A cgroup for the server; ``limit`` 0: none. Without the right to make one, nothing is
    limited.
    """

    def __init__(self, limit: int) -> None:
        v2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self.folder = (
            Path("/sys/fs/cgroup") / ("" if v2 else "memory") / f"topics-bench-{os.getpid()}"
        )
        self.limited = False
        if limit:
            with contextlib.suppress(OSError):
                self.folder.mkdir()
                (self.folder / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(
                    str(limit)
                )
                self.limited = True

    @contextlib.contextmanager
    def joined(self) -> Iterator[None]:
        """What is started inside belongs to it."""
        if self.limited:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            if self.limited:
                (self.folder.parent / "cgroup.procs").write_text(str(os.getpid()))

    def remove(self) -> None:
        if self.limited:
            with contextlib.suppress(OSError):
                self.folder.rmdir()


def rss_mb(pids: list[int]) -> tuple[float, float]:
    """Anonymous and mapped memory of some processes, together; shared memory between them is left
    out.
    """
    anon = file = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("RssAnon"):
                    anon += int(line.split()[1])
                elif line.startswith("RssFile"):
                    file += int(line.split()[1])
    return anon / 1024, file / 1024


class Sampler(threading.Thread):
    """Memory of the server while something runs."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float]] = []
        self._pids, self._end = server.pids(), threading.Event()

    def run(self) -> None:
        while not self._end.wait(0.2):
            self.samples.append(rss_mb(self._pids))

    def stop(self) -> tuple[float, float, float, float]:
        """Smallest and largest anonymous, smallest and largest mapped memory, in MB."""
        self._end.set()
        self.join()
        anon, file = zip(*(self.samples or [rss_mb(self._pids)]), strict=True)
        return min(anon), max(anon), min(file), max(file)


def wait_sealed(server: Server, records: int, timeout_s: float = 120) -> None:
    """Until so many records are in segments, as the log tells."""
    assert server.log is not None
    deadline = time.monotonic() + timeout_s
    while (
        sum(
            event.get("records", 0)
            for event in server.log.events()
            if event.get("event") == "segment sealed"
        )
        < records
    ):
        assert time.monotonic() < deadline, f"not sealed:\n{server.log_tail}"
        time.sleep(0.1)


def quiet(server: Server) -> None:
    """Until nothing is sealed any more: the processes use no time."""
    pids, before = server.pids(), -1.0
    while (now := sum(map(cpu_s, pids))) - before > 0.05:
        before = now
        time.sleep(1)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# a


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
            f"a  wrote {records:,} records, {size / GB:.1f} GB: {records / took:,.0f} records/s ({limit_text})",
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
                f"a  read by {readers}: {rate:,.0f} records/s {verdict(rate >= 1e6)}, CPU {used[0]:.2f} + {used[1]:.2f} ms; "
                f"anonymous {low:.0f}-{high:.0f} MB, mapped {file_low:.0f}-{file_high:.0f} MB {verdict(flat)}",
                flush=True,
            )
        p50, p99, p999, worst = appends_beside_a_reader(
            server.address, min(records, BESIDE_RECORDS)
        )
        print(
            f"a  appends beside one reader: p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f}, worst {worst:.1f} ms",
            flush=True,
        )
    floor_read, floor_write = raw_cost(folder)
    sent = bare_answers(4000, 256 * BATCH) * BATCH
    print(
        f"a  beside: read() of the same files {floor_read:,.0f} MB/s, write of 1 GB {floor_write:,.0f} MB/s, "
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


def _state(client: Client, topic: str) -> dict[str, int]:
    request = f"GET /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    return client.ask_json(request)  # type: ignore[no-any-return]


# b


def many_topics(folder: Path, topics: int, seconds: float) -> None:
    with Server(folder / "data", shards=1) as server:
        names = [f"topic-{number:05d}" for number in range(topics)]
        made = drive(
            server.address, [Load("make", 16, _iterator([append(name, 1) for name in names]))]
        )
        print(f"b  made {topics:,} topics in {made:.1f} s", flush=True)
        for batch, connections in ((1, 16), (100, 8), (1000, 4)):
            requests = (
                round_robin([append(name, batch) for name in names])
                if batch < BATCH
                else _large_round(names, batch)
            )
            rates: dict[str, list[float]] = {"one": [], "many": []}
            for _ in range(3):  # in turn, so that what the machine does besides meets both
                for kind, source in (
                    ("one", lambda batch=batch: append_one[batch]),
                    ("many", requests.__next__),
                ):
                    load = Load(kind, connections, source)
                    took = drive(server.address, [load], seconds / 3)
                    rates[kind].append(len(load.seconds) * batch / took)
            one, many = (statistics.median(rates[kind]) for kind in ("one", "many"))
            print(
                f"b  batch {batch}: one topic {one:,.0f} records/s, {topics:,} topics {many:,.0f}: "
                f"{many / one:.0%} {verdict(many >= one / 2)}",
                flush=True,
            )


append_one = {batch: append("one", batch) for batch in (1, 100, 1000)}


def _large_round(names: list[str], batch: int) -> Iterator[bytes]:
    """Made as they are sent: all of them at once would need gigabytes."""
    body = append_one[batch].split(b"\r\n\r\n", 1)[1]
    while True:
        for name in names:
            yield post(f"/v0/topics/{name}?return_seqs=false", body)


def _iterator(requests: list[bytes]) -> Callable[[], bytes | None]:
    left = iter(requests)
    return lambda: next(left, None)


# c


def start(folder: Path, records: int, topics: int) -> None:
    server = Server(folder / "data", shards=1)
    with server:
        names = [f"topic-{number:05d}" for number in range(topics)]
        requests = _large_round(names, BATCH)
        took = drive(
            server.address, [Load("write", 4, several(requests.__next__, records // BATCH))]
        )
        wait_sealed(server, int(records * 0.98 - 300_000))
        quiet(server)
    for _ in range(3):
        began = time.perf_counter()
        server.start()
        ready = time.perf_counter() - began
        assert server.log is not None
        recovered = next(
            event["seconds"] for event in server.log.events() if event.get("event") == "recovered"
        )
        rss = rss_mb(server.pids())
        server.stop()
        print(
            f"c  {records:,} records in {topics:,} topics (written in {took:.0f} s): ready after {ready:.2f} s {verdict(ready <= 3)}, "
            f"of which recovery {recovered:.2f} s; anonymous {rss[0]:.0f} MB, mapped {rss[1]:.0f} MB",
            flush=True,
        )


# d


def deletes(folder: Path, *, sealed: bool, rounds: int) -> None:
    with Server(
        folder / "data", shards=1, **({} if sealed else {"wal_file_bytes": 1 << 30})
    ) as server:
        drive(
            server.address,
            [Load("write", 2, several(TaggedAppends("tagged", BATCH, TAGS), TAGS // BATCH))],
        )
        if sealed:
            wait_sealed(server, int(TAGS * 0.7))
        quiet(server)
        client = Client(server.address)
        for op, first in (("Eq", 11), ("Glob", 22)):
            server_ms, client_ms = array("d"), array("d")
            for number in range(first, TAGS, TAGS // rounds):
                tag = f"tag-{number:07d}"
                text = f'{{"match":["tag","{op}","{tag}{"*" * (op == "Glob")}"]}}'
                request = post("/v0/topics/tagged/delete", text.encode())
                began = time.perf_counter()
                answer = client.ask_json(request)
                client_ms.append((time.perf_counter() - began) * 1000)
                server_ms.append(answer["performance"]["server_total_ms"])
                assert answer["deleted"] == 1, answer
            where = "in segments" if sealed else "in the log"
            print(
                f"d  {op}, {where}: server median {statistics.median(server_ms):.2f} ms, worst {max(server_ms):.2f} ms; client median "
                f"{statistics.median(client_ms):.2f} ms, first {client_ms[0]:.2f} ms, worst {max(client_ms):.2f} ms "
                f"{verdict(statistics.median(client_ms) <= 5)} (worst: {verdict(max(client_ms) <= 5)})",
                flush=True,
            )


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcd")
    options.add_argument("--gb", type=float, default=1.0)
    options.add_argument("--topics", type=int, default=10_000)
    options.add_argument("--records", type=int, default=10_000_000, help="of c")
    options.add_argument("--seconds", type=float, default=15.0, help="of each side of b")
    options.add_argument("--rounds", type=int, default=100, help="deletes of each kind")
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    parts: dict[str, list[Callable[[Path], None]]] = {
        "a": [lambda folder: large_topic(folder, chosen.gb)],
        "b": [lambda folder: many_topics(folder, chosen.topics, chosen.seconds)],
        "c": [lambda folder: start(folder, chosen.records, 1), lambda folder: start(folder, chosen.records, 1000)],
        "d": [
            lambda folder: deletes(folder, sealed=False, rounds=chosen.rounds),
            lambda folder: deletes(folder, sealed=True, rounds=chosen.rounds),
        ],
    }  # fmt: skip
    for name in chosen.only:
        for part in parts[name]:
            folder = Path(tempfile.mkdtemp(prefix="topics-retention-", dir=chosen.dir))
            try:
                part(folder)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
