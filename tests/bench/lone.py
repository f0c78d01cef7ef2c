"""One client, one request at a time: ``python -m tests.bench.lone [--seconds 2]``.

Appends of one record of 200 bytes to a real server, and the same requests on a path with nothing on
it (`tests/bench/bare.py`), by turns, so that both see the same minutes of the machine. Required:
p50 <= 0.3 ms; ``bare`` says whether the machine has that to give.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from array import array
from itertools import repeat
from pathlib import Path

from tests.bench.bare import BarePath
from tests.bench.http_load import Client, Load, append, drive, quantiles_ms, verdict
from tests.support.server import Server

TURNS = 5
P50_MS = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument(
        "--dir", type=Path, help="where to write, default the system's folder for temporary files"
    )
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="topics-lone-", dir=arguments.dir))
    try:
        with contextlib.ExitStack() as running:
            server = running.enter_context(Server(folder / "data"))
            places = {
                f"bare, {'fdatasync' if synced else 'memory'}": (
                    running.enter_context(BarePath(folder, synced=synced)).address,
                    "bare",
                )
                for synced in (False, True)
            }
            places |= {
                durability: (server.address, durability)
                for durability in ("ephemeral", "disk", "fsync")
            }
            requests = {name: append(topic, 1) for name, (_, topic) in places.items()}
            client = Client(server.address)
            for durability in ("ephemeral", "disk", "fsync"):
                client.ask(append(durability, 1, b'{"durability":"%b"}' % durability.encode()))
            times = {name: array("d") for name in places}
            for _ in range(TURNS):
                for name, (address, _) in places.items():
                    load = Load(name, 1, repeat(requests[name]).__next__)
                    drive(address, [load], arguments.seconds / TURNS)
                    times[name] += load.seconds
    finally:
        shutil.rmtree(folder)
    for name, seconds in times.items():
        p50, p99, p999, most = quantiles_ms(seconds)
        holds = "peer" if name.startswith("bare") else verdict(p50 <= P50_MS)
        print(
            f"{name:<18}p50 {p50:>6.3f}  p99 {p99:>6.2f}  p99.9 {p999:>6.2f}  max {most:>6.2f} ms"
            f"   {holds}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
