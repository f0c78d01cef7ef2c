"""How long an append waits while the log is sealed: ``python -m tests.bench.pauses [--seconds 20]
[--tags 1000000]``.

A real server over HTTP under full load: appenders of one record and of a hundred, each with the
next request as soon as it has its answer, on a topic with a million distinct tags. Beside it, in
the same run, the same load on a log file so large that nothing is sealed. Required: p99.9 <= 20 ms.
``sealing`` is the share of the time in which a segment was being made, ``stolen`` how much of a
core the host of a virtual machine kept for itself: where that is a fifth and more, the load alone
may take 20 ms.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from tests.bench.http_load import (
    Client,
    Load,
    TaggedAppends,
    append,
    drive,
    quantiles_ms,
    several,
    verdict,
)
from tests.support.server import Server

HUGE = 1 << 30
LIMIT_MS = 20.0


def measure(
    folder: Path, durability: str, *, sealing: bool, seconds: float, tags: int, wal_file_bytes: int
) -> None:
    config = b'{"durability":"%b"}' % durability.encode()
    with Server(
        folder / "data", shards=1, wal_file_bytes=wal_file_bytes if sealing else HUGE
    ) as server:
        client = Client(server.address)
        client.ask(append("busy", 1, config))
        drive(
            server.address,
            [Load("tags", 2, several(TaggedAppends("busy", 1000, tags), tags // 1000))],
        )
        loads = [
            Load("1", 8, TaggedAppends("busy", 1, tags)),
            Load("100", 2, TaggedAppends("busy", 100, tags)),
        ]
        before, stolen = _sealed_s(server), _stolen_s()
        took = drive(server.address, loads, seconds)
        share, stolen = (_sealed_s(server) - before) / took, (_stolen_s() - stolen) / took
    for load in loads:
        figures = quantiles_ms(load.seconds)
        holds = verdict(figures[2] <= LIMIT_MS) if sealing else "peer"
        rate = len(load.seconds) * int(load.name) / took
        columns = "".join(f"{figure:>9.2f}" for figure in figures)
        print(
            f"{durability:<7}{'sealing' if sealing else 'without':<9}{load.name:>5}{rate:>12,.0f}"
            f"{columns}"
            f"{share:>9.0%}{stolen:>9.0%}  {holds}",
            flush=True,
        )


def _sealed_s(server: Server) -> float:
    assert server.log is not None
    events = server.log.events()
    return sum(
        float(event["seconds"]) for event in events if event.get("event") == "segment sealed"
    )


def _stolen_s() -> float:
    """CPU time that the host has kept back since the machine began, of all cores; 0 where that is
    not told.
    """
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seconds", type=float, default=20.0)
    options.add_argument("--tags", type=int, default=1_000_000)
    options.add_argument("--wal-file-bytes", type=int, default=64 << 20)
    options.add_argument("--durability", default="disk,fsync")
    options.add_argument(
        "--dir",
        type=Path,
        default=None,
        help="where to write, default the system's folder for temporary files",
    )
    chosen = options.parse_args()
    print(
        f"{'':<7}{'':<9}{'batch':>5}{'records/s':>12}{'p50 ms':>9}{'p99':>9}{'p99.9':>9}"
        f"{'max':>9}{'sealing':>9}{'stolen':>9}"
    )
    for durability in chosen.durability.split(","):
        for sealing in (False, True):
            folder = Path(tempfile.mkdtemp(prefix="topics-pauses-", dir=chosen.dir))
            try:
                measure(
                    folder,
                    durability,
                    sealing=sealing,
                    seconds=chosen.seconds,
                    tags=chosen.tags,
                    wal_file_bytes=chosen.wal_file_bytes,
                )
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
