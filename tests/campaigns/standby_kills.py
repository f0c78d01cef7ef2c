"""Standby of a server under load: after every kill, the newest generation is restored or promoted.

The load is that of `tests.campaigns.backups`: chains of routers, dead letters, redrives, deletes
and blobs, with log files so small that they are sealed and merged all the time. A process of the
server, all of them, the standby, or the server and the standby are killed at a random time. After
that the newest generation is restored, or a copy of the standby is promoted, and a server on it is
judged: no record that was acknowledged before the cut is missing or duplicated. The standby is then
started again and must add a generation. Runs as a program: ``python -m
tests.campaigns.standby_kills --kills 100``.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.campaigns.backups import SHARDS, WAIT_MAX_S, Campaign, Moment, wait_for
from tests.campaigns.killer import Summary, program
from tests.support.server import ROOT, kill_one
from topics.storage.backup_restore import restore
from topics.storage.promote import promote
from topics.storage.standby import Standby

EVERY = "200ms"
CHECKPOINTS_KEPT = 5
ROUND_S = 300.0  # the server reads files with a low priority, and this machine may be busy
VICTIMS = ("standby", "front 0", "shard 0", "shard 1", "server", "both")
WANTED = (
    *("copies", "dead", "redriven", "acked", "deleted", "blobs", "restored", "promoted"),
    *(f"killed {victim}" for victim in VICTIMS),
)


class StandbyKills(Campaign):
    """One server under load, and its standby."""

    def __init__(self, data_dir: Path, *, seed: int, kills: int) -> None:
        super().__init__(data_dir, seed=seed, seconds=0, kills=kills)
        self.standby = Standby(data_dir.with_name("standby"))
        self._process: subprocess.Popen[bytes] | None = None
        self._moments: list[tuple[int, Moment]] = []
        self._next_victims: list[str] = []

    def take_backups(self) -> None:
        # The standby finds the server at the same address after each restart.
        self.server.env["TOPICS_PORT"] = str(self.server.address[1])
        self._note_moment()
        self._start_standby()
        wait_for(lambda: bool(self.standby.numbers()), WAIT_MAX_S)
        for number in range(1, self.kills + 1):
            self._note_moment()
            self._kill_and_judge(number)
            self.summary.print_progress(f"{self.kills - number} kills remaining")
        self._stop_standby(signal.SIGTERM)
        self.summary.killed = f"{self.kills} kills"

    def _note_moment(self) -> None:
        """Record the acknowledged writes. Only moments before the next cut are needed."""
        self._moments = [
            *self._moments[-CHECKPOINTS_KEPT:],
            (time.time_ns() // 1_000_000, self.ledger.now()),
        ]

    def _start_standby(self) -> None:
        host, port = self.server.address
        rate = self.rng.choice(["1G", "50M", "10M"])  # slow transfers are killed midway
        command = [sys.executable, "-m", "topics", "--url", f"http://{host}:{port}", "standby"]
        command += ["run", str(self.standby.path), "--every", EVERY, "--rate", rate]
        self._process = subprocess.Popen([*command, "--keep", str(CHECKPOINTS_KEPT)], cwd=ROOT)

    def _stop_standby(self, how: signal.Signals) -> None:
        assert self._process is not None, "the process was not started"
        if self._process.poll() is not None:
            self.summary.problems.append(f"the standby ended with {self._process.returncode}")
        self._process.send_signal(how)
        self._process.wait(WAIT_MAX_S)

    def _kill_and_judge(self, number: int) -> None:
        if not self._next_victims:
            self._next_victims = [*VICTIMS]
            self.rng.shuffle(self._next_victims)
        victim = self._next_victims.pop()
        roles = self.server.wait_roles(SHARDS + 1)
        time.sleep(self.rng.uniform(0, 1))
        if victim in roles:
            kill_one(roles[victim])
        killers: list[Callable[[], None]] = []
        if victim in ("standby", "both"):
            killers.append(partial(self._stop_standby, signal.SIGKILL))
        if victim in ("server", "both"):
            killers.append(self.server.kill)
        self.rng.shuffle(killers)
        threads = [threading.Thread(target=killer) for killer in killers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.summary.counts[f"killed {victim}"] += 1
        if victim in ("server", "both"):
            self.server.start()
        elif victim in roles:
            self.wait_replaced(victim, roles[victim])
        if victim not in ("standby", "both"):
            self._stop_standby(signal.SIGTERM)
        self._judge_newest(number)
        newest = self.standby.numbers()[-1]
        self._start_standby()
        try:
            wait_for(lambda: self.standby.numbers()[-1] > newest, ROUND_S)
        except AssertionError:
            assert self.server.log is not None, "the process was not started"
            for event in self.server.log.events()[-20:]:
                self.summary.print_progress(str(event))
            raise

    def _judge_newest(self, number: int) -> None:
        newest = self.standby.newest()
        assert newest is not None, "no generation exists"
        moments = [moment for at_ms, moment in self._moments if at_ms < newest.created_ms]
        if not moments:
            self.summary.counts["too old to judge"] += 1
            return
        folder = self.data_dir.with_name(f"judged-{number}")
        as_new = number % 4 == 0
        if number % 2:
            unpack = partial(self.standby.unpack, newest, link=False)
            restore(unpack, folder, as_new=as_new, with_damage=False)
            self.summary.counts["restored"] += 1
        else:
            shutil.copytree(self.standby.path, folder)
            copy = Standby(folder)
            with copy.lock():
                promote(copy, as_new=as_new, with_damage=False, fence=None)
            self.summary.counts["promoted"] += 1
        what = f"kill {number}, generation {newest.number}"
        found = len(self.summary.problems)
        self.judge_server(folder, moments[-1], what, as_new=as_new)
        for problem in self.summary.problems[found:]:
            self.summary.print_progress(problem)


def campaign(data_dir: Path, *, seed: int, kills: int = 10) -> Summary:
    """Run the campaign."""
    return StandbyKills(data_dir, seed=seed, kills=kills).run()


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, kills=100))
