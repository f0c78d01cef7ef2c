"""What live costs on a real server: ``python -m tests.bench.live [--only abcd] [--seconds 5]``.

a   publishes on one WebSocket, 50 of them unanswered: acks and records a second
b   from just before a publish is sent to when a subscriber has read its frame, at 100 messages a
    second; and the same on a path with nothing on it (`tests/bench/bare.py`)
c   memory of front and shards for each open idle stream, every one with a session of its own
d   a room: 100 WebSockets that each publish 20 messages a second to the one topic that all are
    subscribed to

Records are of 200 bytes. The clients are this process: frames made before they are sent, answers
counted in the bytes as they come, everything in one epoll loop. The machine's other load is in
every figure.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from tests.bench.http_load import DATA, Client, append, verdict
from tests.bench.live_clients import (
    ACK,
    CLASSES,
    ERROR,
    RECV_BYTES,
    line,
    running,
    stream,
    text,
    uncollected,
    until,
    web_socket,
)
from tests.bench.live_deliveries import deliveries
from tests.bench.live_room import room
from tests.bench.processes import Usage
from tests.support.server import rss_bytes

WINDOW = 50
ACKS_MIN, RECORDS_MIN = 20_000, 100_000  # a second, with 1 and with 20 records a message
BATCH = 20
IDLE_STREAMS = 5000
IDLE_BYTES_MAX = 25 << 10


# a: publishes


def publishes(folder: Path | None, seconds: float) -> None:
    with running(folder) as server:
        client = Client(server.address)
        for durability in CLASSES:
            client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            for records in (1, BATCH):
                usage = Usage(server)
                acks = _publish(server.address, durability, records, seconds)
                shown = f"{acks:>10,.0f} acks/s {acks * records:>10,.0f} records/s   {usage}"
                holds = verdict(acks >= ACKS_MIN if records == 1 else acks * records >= RECORDS_MIN)
                line(
                    f"a {durability}, {records} a message",
                    shown,
                    "info" if durability == "fsync" else holds,
                )


def _publish(address: tuple[str, int], topic: str, records: int, seconds: float) -> float:
    """Acks a second with a window of publishes on one connection."""
    rows = b",".join([b'{"data":%b}' % DATA] * records)
    message = text(
        b'{"op":"publish","request_id":"p","topic":"%b","return_seqs":false,"records":[%b]}'
        % (topic.encode(), rows)
    )
    window = memoryview(message * WINDOW)
    sock = web_socket(address)
    buffer = bytearray(RECV_BYTES)
    view, kept, acked, sent = memoryview(buffer), 0, 0, WINDOW
    with uncollected():
        began = time.perf_counter()
        deadline = began + seconds
        sock.sendall(window)
        while acked < sent:
            count = sock.recv_into(view[kept:])
            assert count, "the server hung up"
            end = kept + count
            came = buffer.count(ACK, 0, end)
            assert buffer.find(ERROR, 0, end) < 0, bytes(buffer[:end][:1000])
            # The last bytes may begin an "op" that goes on in the next read ...
            kept = min(end, len(ERROR) - 1)
            at = buffer.rfind(ACK, 0, end)
            if at >= 0:
                # ... but what was counted must not be counted again.
                kept = min(kept, end - at - len(ACK))
            view[:kept] = bytes(view[end - kept : end])
            acked += came
            if came and time.perf_counter() < deadline:
                sock.sendall(window[: came * len(message)])
                sent += came
        took = time.perf_counter() - began
    sock.close()
    return acked / took


# c: idle streams


def idle_streams(folder: Path | None) -> None:
    with running(folder) as server:
        client = Client(server.address)
        client.ask(append("idle", 1))
        # What the first ones load is not theirs.
        early = [stream(server.address, client, "idle") for _ in range(50)]
        before = {role: rss_bytes(pid) for role, pid in server.roles().items()}
        began = time.perf_counter()
        streams = [stream(server.address, client, "idle") for _ in range(IDLE_STREAMS)]
        took = time.perf_counter() - began
        time.sleep(2)
        after = {role: rss_bytes(pid) for role, pid in server.roles().items()}
        front, shard = (
            (after[role] - before[role]) / IDLE_STREAMS for role in ("front 0", "shard 0")
        )
        usage = Usage(server)
        time.sleep(5)
        memory = f"front {front / 1024:>6.1f} KiB  shard {shard / 1024:>5.1f} KiB a stream"
        shown = f"{memory}, {IDLE_STREAMS / took:,.0f} opened/s; idle: {usage}"
        line(f"c {IDLE_STREAMS} idle streams", shown, verdict(front + shard <= IDLE_BYTES_MAX))
        client.ask(append("idle", 1))
        sent = time.perf_counter()
        for sock in streams:
            until(sock, b"event: record\n")
        line(
            "c one record to all of them",
            f"{(time.perf_counter() - sent) * 1000:,.0f} ms until the last was read",
            "info",
        )
        for sock in (*streams, *early):
            sock.close()


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", default="abcd")
    options.add_argument("--seconds", type=float, default=5.0, help="for each figure")
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if "a" in chosen.only:
        publishes(chosen.dir, chosen.seconds)
    if "b" in chosen.only:
        deliveries(chosen.dir, chosen.seconds)
    if "c" in chosen.only:
        idle_streams(chosen.dir)
    if "d" in chosen.only:
        room(chosen.dir, chosen.seconds)


if __name__ == "__main__":
    main()
