"""Kills processes of a running server at random, and waits until they are back."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.server import Server, kill_one
from topics.storage.verify import Finding, verify_directory

EVERYTHING = "everything"
BACK_S = 20.0  # for a campaign; how fast a single shard is back is measured in test_kill.py


class Killer:
    """Kills the front, a shard or everything. ``outages_s``: how long each lasted, by role; one
    that was not waited for says nothing.
    """

    def __init__(self, server: Server, shards: int, dice: random.Random) -> None:
        self._server, self._shards, self.dice = server, shards, dice
        self.outages_s: dict[str, list[float]] = {}
        self.kills: Counter[str] = Counter()

    def kill(self) -> None:
        """Kill one at random. Mostly waits until it is replaced; sometimes the next kill comes
        before that.
        """
        roles = self._server.wait_roles(self._shards + 1, BACK_S)
        role = self.dice.choice([*sorted(roles), EVERYTHING])
        self.kills[role] += 1
        killed_at = time.monotonic()
        if role == EVERYTHING:
            self._server.kill()
            # This process is busy: it sees that all are gone later than they go.
            killed_at = time.monotonic()
            self._server.start(BACK_S)
        else:
            kill_one(roles[role])
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


@dataclass(slots=True)
class Summary:
    """What a campaign did and what it found; its text is the report."""

    seed: int
    killed: str = "nobody"
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def tell(self, line: str) -> None:
        """Of a long campaign, as it goes."""
        print(line, flush=True)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        lines = [f"seed {self.seed}: {self.killed}", counts, f"{len(self.problems)} problems"]
        return "\n".join([*lines, *self.problems[:40]])


def deaths_by_themselves(server: Server) -> list[str]:
    """Deaths that no killer caused, as the log tells. A start may meet a lost directory."""
    events = server.log.events() if server.log else []
    lost = {event["pid"] for event in events if event.get("event") == "data directory lost"}
    return [
        f"by itself: {event}"
        for event in events
        if event.get("event") == "stalled process killed"
        or (
            event.get("event") == "process died"
            and event.get("signal") != "SIGKILL"
            and event["child_pid"] not in lost
        )
    ]


def damage(data_dir: Path, shards: int) -> list[str]:
    """What `topics verify` finds."""
    found = verify_directory(data_dir, shards)
    return [f"topics verify: {each}" for each in found if isinstance(each, Finding)]


def program(
    doc: str | None,
    campaign: Callable[..., Summary],
    wanted: Sequence[str] = (),
    /,
    **options: float | str,
) -> int:
    """Run a campaign as a program, with these options and their defaults, in a data directory of
    its own; the exit status. A check of ``wanted`` that met nothing proves nothing.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    for name, default in (options | {"seed": time.time_ns() % 1_000_000}).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=f"default {default}")
    asked = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="topics-campaign-") as directory:
        try:
            summary = campaign(Path(directory) / "data", **asked)
        except BaseException:
            print(f"seed {asked['seed']}: the campaign did not end", file=sys.stderr)
            raise
    summary.problems += [
        f"this campaign proves little: no {what}" for what in wanted if not summary.counts[what]
    ]
    print(summary)
    return 1 if summary.problems else 0
