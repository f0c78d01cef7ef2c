"""Kills processes of a running server at random, and waits until they are back."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.server import Server, kill_one

EVERYTHING = "everything"
BACK_S = 20.0  # for a campaign; how fast a single shard is back is measured in test_kill.py


class Killer:
    """Kills the front, a shard or everything. ``outages_s``: how long each lasted, by role; one
    that was not waited for says nothing. ``deaths``: role, and the moments before and after which
    it was killed (monotonic, nanoseconds).
    """

    def __init__(self, server: Server, shards: int, dice: random.Random) -> None:
        self._server, self._shards, self.dice = server, shards, dice
        self.outages_s: dict[str, list[float]] = {}
        self.kills: Counter[str] = Counter()
        self.deaths: list[tuple[str, int, int]] = []

    def kill(self) -> None:
        """Kill one at random. Mostly waits until it is replaced; sometimes the next kill comes
        before that.
        """
        roles = self._server.wait_roles(self._shards + 1, BACK_S)
        role = self.dice.choice([*sorted(roles), EVERYTHING])
        self.kills[role] += 1
        killed_at = time.monotonic()
        before_ns = time.monotonic_ns()
        if role == EVERYTHING:
            self._server.kill()
            self.deaths.append((role, before_ns, time.monotonic_ns()))
            # This process is busy: it sees that all are gone later than they go.
            killed_at = time.monotonic()
            self._server.start(BACK_S)
        else:
            kill_one(roles[role])
            self.deaths.append((role, before_ns, time.monotonic_ns()))
            if self.dice.random() < 0.2:
                return
            self._wait_replaced(role, roles[role])
        self.outages_s.setdefault(role, []).append(time.monotonic() - killed_at)

    def __str__(self) -> str:
        killed = ", ".join(f"{role} {count}x" for role, count in sorted(self.kills.items()))
        longest = ", ".join(
            f"{role} {max(outages):.2f} s" for role, outages in sorted(self.outages_s.items())
        )
        return f"killed {killed}; longest outages: {longest}"

    def _wait_replaced(self, role: str, old: int) -> None:
        deadline = time.monotonic() + BACK_S
        while self._server.roles().get(role, old) == old:
            assert time.monotonic() < deadline, (
                f"{role} was not replaced within {BACK_S} s:\n{self._server.log_tail}"
            )
            time.sleep(0.005)
        self._server.wait_ready(BACK_S)


class Summary(Protocol):
    """What a campaign came to; its text is the report."""

    @property
    def problems(self) -> Sequence[object]: ...


def verdict_of(seed: int, campaign: Callable[[Path], Summary]) -> int:
    """Run a campaign in a data directory of its own and print what it came to: the exit status of
    its program.
    """
    with tempfile.TemporaryDirectory(prefix="topics-campaign-") as directory:
        try:
            summary = campaign(Path(directory) / "data")
        except BaseException:
            print(f"seed {seed}: the campaign did not end", file=sys.stderr)
            raise
    print(summary)
    return 1 if summary.problems else 0
