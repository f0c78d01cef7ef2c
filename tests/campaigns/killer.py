"""Kills random processes of a running server, and waits until they have restarted."""

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
RESTART_MAX_S = 20.0  # limit of a campaign; test_kill.py measures how fast a single shard restarts


class Killer:
    """Kills the front, a shard or all processes. ``outages_s`` is the duration of each outage by
    role. Outages that were not waited for are not recorded.
    """

    def __init__(self, server: Server, shards: int, rng: random.Random) -> None:
        self._server, self._shards, self.rng = server, shards, rng
        self.outages_s: dict[str, list[float]] = {}
        self.kills: Counter[str] = Counter()

    def kill(self) -> None:
        """Kill a random process. In most cases wait until it is replaced; sometimes the next kill
        happens before that.
        """
        roles = self._server.wait_roles(self._shards + 1, RESTART_MAX_S)
        role = self.rng.choice([*sorted(roles), EVERYTHING])
        self.kills[role] += 1
        killed_at = time.monotonic()
        if role == EVERYTHING:
            self._server.kill()
            # this process is busy, so it detects the exits late
            killed_at = time.monotonic()
            self._server.start(RESTART_MAX_S)
        else:
            kill_one(roles[role])
            if self.rng.random() < 0.2:
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
        deadline = time.monotonic() + RESTART_MAX_S
        while self._server.roles().get(role, old) == old:
            assert time.monotonic() < deadline, (
                f"{role} was not replaced within {RESTART_MAX_S} s:\n{self._server.log_tail}"
            )
            time.sleep(0.005)
        self._server.wait_ready(RESTART_MAX_S)


@dataclass(slots=True)
class Summary:
    """The actions and findings of a campaign. `str` returns the report."""

    seed: int
    killed: str = "no kills"
    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def print_progress(self, line: str) -> None:
        """Print the progress of a long campaign."""
        print(line, flush=True)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        lines = [f"seed {self.seed}: {self.killed}", counts, f"{len(self.problems)} problems"]
        return "\n".join([*lines, *self.problems[:40]])


def deaths_by_themselves(server: Server) -> list[str]:
    """Return the crashes in the log that no kill caused, except those of a lost data directory."""
    events = server.log.events() if server.log else []
    lost = {event["pid"] for event in events if event.get("event") == "data directory lost"}
    return [
        f"crash without a kill: {event}"
        for event in events
        if event.get("event") == "stalled process killed"
        or (
            event.get("event") == "process died"
            and event.get("signal") != "SIGKILL"
            and event["child_pid"] not in lost
        )
    ]


def damage(data_dir: Path, shards: int) -> list[str]:
    """Return the findings of `topics verify`."""
    found = verify_directory(data_dir, shards)
    return [f"topics verify: {each}" for each in found if isinstance(each, Finding)]


def program(
    description: str | None,
    campaign: Callable[..., Summary],
    wanted: Sequence[str] = (),
    /,
    **options: float | str,
) -> int:
    """Run a campaign as a program, with these options and their defaults, in its own data
    directory. Return the exit status. It is an error if a case of ``wanted`` never occurred,
    because the campaign then proves nothing.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=raw)
    for name, default in (options | {"seed": time.time_ns() % 1_000_000}).items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=f"default {default}")
    arguments = vars(parser.parse_args())
    with tempfile.TemporaryDirectory(prefix="topics-campaign-") as directory:
        try:
            summary = campaign(Path(directory) / "data", **arguments)
        except BaseException:
            print(f"seed {arguments['seed']}: the campaign did not finish", file=sys.stderr)
            raise
    summary.problems += [
        f"the campaign is not conclusive, because it had no {what}"
        for what in wanted
        if not summary.counts[what]
    ]
    print(summary)
    return 1 if summary.problems else 0
