"""No server process keeps secrets in its memory after the start and after reloads (§0.2)."""

from __future__ import annotations

import os
import re
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("started_servers")]

PAGE = os.sysconf("SC_PAGESIZE")
PRESENT = 1 << 63 | 1 << 62  # present in memory or swapped out
SECRET = re.compile(rb"correct-horse-[a-z]+-staple")
WITHIN_S = 10.0


def present_runs(pid: int) -> Iterator[tuple[int, int]]:
    """Return the address ranges of the writable memory of a process that have pages."""
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    with Path(f"/proc/{pid}/pagemap").open("rb", buffering=0) as pagemap:
        for span, mode in [line.split()[:2] for line in maps]:
            start, end = (int(part, 16) for part in span.split("-"))
            if "w" not in mode:
                continue
            pagemap.seek(start // PAGE * 8)
            entries = pagemap.read((end - start) // PAGE * 8)
            run = None
            for number, (entry,) in enumerate(struct.iter_unpack("<Q", entries)):
                at = start + number * PAGE
                if entry & PRESENT and run is None:
                    run = at
                elif not entry & PRESENT and run is not None:
                    yield run, at
                    run = None
            if run is not None:
                yield run, end


def secrets_in(pid: int) -> set[bytes]:
    """Return the secrets in the memory of a process, including freed memory."""
    found = set()
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, end in present_runs(pid):
            memory.seek(start)
            found |= {*SECRET.findall(memory.read(end - start))}
    return found


def secrets_of(server: Server) -> dict[str, set[bytes]]:
    processes = {"supervisor": server.pid} | server.roles()
    assert len(processes) == 3
    return {name: found for name, pid in processes.items() if (found := secrets_in(pid))}


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may read the memory of a server that has keys"
)
def test_no_process_keeps_a_secret_of_the_environment_or_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("other:r\ncorrect-horse-file-staple:r\n# correct-horse-comment-staple\n")
    environ = "correct-horse-environment-staple:rw:a,more"
    small = {"shards": 1, "ring_bytes": 65536, "inline_bytes": 16384, "arena_bytes": 16 << 20}
    small["max_body_bytes"] = 1 << 20
    with Server(tmp_path / "data", api_keys=environ, api_keys_file=file, **small) as server:
        server.wait_roles(2)
        assert secrets_of(server) == {}
        for event, content in (
            ("keys reloaded", "correct-horse-second-staple\n" * 1 + "x\n" + "# more\n" * 5000),
            ("keys not reloaded", "correct-horse-third-staple:fly"),
            ("keys not reloaded", "fine,se:correct-horse-fourth-staple"),
        ):
            file.write_text(content)
            reload(server, event)
        os.kill(server.roles()["front 0"], signal.SIGKILL)
        server.wait_ready()
        assert secrets_of(server) == {}


def reload(server: Server, event: str) -> None:
    assert server.log is not None
    lines = len(server.log.events())
    os.kill(server.pid, signal.SIGHUP)
    deadline = time.monotonic() + WITHIN_S
    while event not in [line["event"] for line in server.log.events()[lines:]]:
        assert time.monotonic() < deadline, server.log_tail
        time.sleep(0.02)


def test_the_search_finds_a_secret_in_memory() -> None:
    held = b"correct-horse-%b-staple" % b"own"
    assert held in secrets_in(os.getpid())
