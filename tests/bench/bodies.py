"""How long long bodies take, what they hold, and how many attempts they need beside one another.

    python -m tests.bench.bodies [--rounds 5] [--uploads 2,4,8] [--rate 20]

A real server with one shard. Bodies of a known length and chunked ones.
Memory is the most that was seen above what the process had before, shared pages included. Then so
many clients at once upload 60 MiB each, at ``rate`` million bytes a second, and come again a second
after a 429. Compare two versions by turns: medians of one run vary by a third.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.support.server import Server, rss_bytes

MIB = 2**20
SIZES = (("300 KB", 300_000), ("1 MiB", MIB), ("4 MiB", 4 * MIB - 100_000), ("63 MiB", 63 * MIB))
PIECE = MIB // 2


def body(size: int) -> bytes:
    """A write of about ``size`` bytes."""
    each = min(200_000, size // 30)
    record = b'{"data":"%b"}' % (b"x" * each)
    return b'{"records":[' + b",".join([record] * (size // (each + 12))) + b"]}"


class Peaks:
    """The memory of a server's processes, looked at every 5 ms in a thread."""

    def __init__(self, server: Server) -> None:
        self._pids = server.roles()
        self._base = {role: rss_bytes(pid) for role, pid in self._pids.items()}
        self.above = dict.fromkeys(self._pids, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            for role, pid in self._pids.items():
                self.above[role] = max(self.above[role], rss_bytes(pid) - self._base[role])


def post(client: http.client.HTTPConnection, topic: str, raw: bytes | Iterator[bytes]) -> int:
    """The status of the answer. An iterator is sent in chunks."""
    fields = {"Content-Type": "application/json"}
    chunked = not isinstance(raw, bytes)
    client.request("POST", f"/v0/topics/{topic}", raw, fields, encode_chunked=chunked)
    answer = client.getresponse()
    answer.read()
    return answer.status


def alone(server: Server, rounds: int) -> None:
    """One body after the other."""
    client = http.client.HTTPConnection(*server.address)
    for name, size in SIZES:
        raw = body(size)
        for kind in ("known", "chunked"):
            took = []
            with Peaks(server) as peaks:
                for _ in range(rounds if size > 5 * MIB else 20 * rounds):
                    pieces = (raw[at : at + MIB] for at in range(0, len(raw), MIB))
                    began = time.perf_counter()
                    status = post(client, "alone", raw if kind == "known" else pieces)
                    took.append(time.perf_counter() - began)
                    assert status in (200, 201), status
            median, least = statistics.median(took) * 1e3, min(took) * 1e3
            memory = ", ".join(f"{role} +{most // MIB} MiB" for role, most in peaks.above.items())
            print(f"{name:>7} {kind:8} median {median:7.2f} ms, least {least:7.2f}; {memory}")


def upload(server: Server, topic: str, raw: bytes, rate: float) -> int:
    """Until it is taken; how many attempts it took."""
    for attempt in range(1, 100):
        client = http.client.HTTPConnection(*server.address, timeout=60)
        try:
            client.putrequest("POST", f"/v0/topics/{topic}")
            client.putheader("Content-Type", "application/json")
            client.putheader("Content-Length", str(len(raw)))
            client.endheaders()
            began = time.perf_counter()
            for at in range(0, len(raw), PIECE):
                client.send(raw[at : at + PIECE])
                time.sleep(max(0.0, began + at / rate - time.perf_counter()))
            status = client.getresponse().status
        except OSError:
            status = 429  # it was answered while it was sent
        finally:
            client.close()
        if status != 429:
            assert status in (200, 201), status
            return attempt
        time.sleep(1)
    raise AssertionError("never taken")


def beside(server: Server, uploads: int, rate: float) -> None:
    """Several at once."""
    raw, attempts = body(60 * MIB), []
    began = time.perf_counter()

    def run(number: int) -> None:
        attempts.append(upload(server, f"beside-{number}", raw, rate))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(uploads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    print(f"{uploads} uploads of 60 MiB: {sum(attempts)} attempts, done after {took:.1f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uploads", default="2,4,8")
    parser.add_argument("--rate", type=float, default=20.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder), shards=1) as server:
        alone(server, asked.rounds)
        for uploads in asked.uploads.split(","):
            beside(server, int(uploads), asked.rate * 1e6)


if __name__ == "__main__":
    main()
