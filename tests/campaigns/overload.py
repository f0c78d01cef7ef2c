"""Overload: three times as many clients as reach the peak, on topics of all priority bands.

Runs as a program: ``python -m tests.campaigns.overload --seconds 60``. The clients run in a
separate process (`overload_clients`), which shares the machine's cores with the server.

    peak       closed-loop clients in steps, with ``disable_backpressure``: the maximum rate of
               stored writes, and the number of clients that reach it
    pushed     three times as many clients, at least 300, with ``disable_backpressure``
    overload   the same number of clients. Half of them obey ``Retry-After``, half
               ``retry_after_ms``, and a few ignore both.

These conditions must hold:

- 99 of 100 stored writes to the topic of priority 1000 take at most 50 ms
- no topic starves: each stores a write of an obeying client at least every 5 s
- 95 % of the obeying clients' second attempts are stored
- the total rate is at least 0.8 times the rate in the phase ``pushed``, and on a quiet machine 0.8
  times the peak; every response is a success or a refusal

Times and rates are in the server's own time. Other processes on the machine make server and clients
wait for a processor. The kernel counts this waiting time, which stretches all durations by one
factor.
"""

from __future__ import annotations

import json
import sys
import time
from array import array
from collections.abc import Iterable
from pathlib import Path

from tests.bench.processes import cpu_s, machine_s, queued_s
from tests.campaigns.killer import Summary, program
from tests.campaigns.overload_clients import Manner, Plan, Report, Tally, drive
from tests.support.api import Api, ok, request
from tests.support.program import in_a_process
from tests.support.server import Server

# Four topics for each of the five bands.
PRIORITIES = (
    *(1000, 900, 800, 750),
    *(600, 500, 400, 300),
    *(200, 150, 100, 50),
    *(0, 0, 0, 0),
    *(-100, -300, -500, -1000),
)
PEAK_STEPS = (16, 48, 128)
PEAK_SHARE = 0.95  # of the peak: the smallest number of clients that reaches this share is used
OVERLOAD, CLIENTS_MIN = 3, 300
GREEDY_INTERVAL = 20  # clients
ADMIN_KEY = "boss-key"
# shared by obeying clients; greedy clients have their own keys and do not reduce the share of
# others
KEYS = 40
DATA_BYTES = 190

AIM_MS, GAP_S, SECOND_SHARE, PEAK_KEPT = 50.0, 5.0, 0.95, 0.8
# up to this stretch factor, the peak of a few clients is a valid reference for a crowd
QUIET = 1.25


def topic_of(index: int) -> str:
    """Return the topic of a priority."""
    return f"load-{index:02d}"


def request_of(topic: str, token: str, *, pushes: bool) -> bytes:
    """Return the bytes of one append."""
    fields = {"disable_backpressure": True} if pushes else {}
    body = json.dumps({**fields, "records": [{"data": {"pad": "x" * DATA_BYTES}}]}).encode()
    path = f"/v0/topics/{topic}?return_seqs=false"
    return request("POST", path, body, f"Authorization: Bearer {token}")


def plan_of(number: int, *, greedy: bool, pushes: bool) -> Plan:
    """Return the plan of client ``number``. All clients together are spread over the topics."""
    topic, round_number = topic_of(number % len(PRIORITIES)), number // len(PRIORITIES)
    # Every twentieth client is greedy, and there are twenty topics. ``round_number`` is added so
    # that the greedy clients use different topics.
    if greedy and (number + round_number) % GREEDY_INTERVAL == GREEDY_INTERVAL - 1:
        manner, token = Manner.GREEDY, f"greedy-{number % 2}"
    else:
        manner = Manner.HEADER if round_number % 2 else Manner.MILLISECONDS
        token = f"obeys-{round_number % KEYS}"
    return Plan(topic, request_of(topic, token, pushes=pushes), manner)


def run(server: Server, clients: int, seconds: float, *, pushes: bool) -> tuple[Report, Usage]:
    """Run this number of writing clients in a separate process.

    Unless ``pushes`` is set, a few of them are greedy. All others obey.
    """
    plans = [plan_of(number, greedy=not pushes, pushes=pushes) for number in range(clients)]
    usage = Usage(server)
    report = in_a_process(drive, server.address, plans, seconds)
    usage.end(report)
    return report, usage


def rate(report: Report) -> float:
    """Return the number of stored writes per second."""
    return sum(tally.stored for tally in report.tallies.values()) / report.took_s


def merged(tallies: Iterable[Tally]) -> Tally:
    """Merge several tallies. The gap is the shortest one: if one client stored a write, the topic
    did not starve.
    """
    total = Tally(gap_s=float("inf"))
    for tally in tallies:
        total.stored += tally.stored
        total.refused += tally.refused
        total.second_tries += tally.second_tries
        total.second_stored += tally.second_stored
        total.tries_max = max(total.tries_max, tally.tries_max)
        total.gap_s = min(total.gap_s, tally.gap_s)
        total.took_s += tally.took_s
        total.total_s += tally.total_s
        for what, count in tally.others.items():
            total.others[what] = total.others.get(what, 0) + count
    return total


def percentile_ms(seconds: array[float], share: float) -> float:
    """Return a percentile in milliseconds, or 0.0 without values."""
    ordered = sorted(seconds)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1000 if ordered else 0.0


class Usage:
    """Processor time of front, shards, clients and all other processes from now on."""

    def __init__(self, server: Server) -> None:
        self._roles, self._began = server.roles(), time.perf_counter()
        self._before = {role: cpu_s(pid) for role, pid in self._roles.items()}
        self._queued, self._machine = queued_s(*self._roles.values()), machine_s()

    def end(self, report: Report) -> None:
        self._took = time.perf_counter() - self._began
        self._used = {role: cpu_s(pid) - self._before[role] for role, pid in self._roles.items()}
        self._used["clients"] = report.cpu_s
        ours = sum(self._used.values())
        others = max(0.0, machine_s() - self._machine - ours)
        queued = queued_s(*self._roles.values()) - self._queued + report.queued_s
        # A process that waits for a processor waits for any other running process.
        self.stretch = 1 + queued * others / (others + ours) / ours
        self._used["others"] = others

    def __str__(self) -> str:
        shares = (f"{who} {used / self._took:.0%}" for who, used in sorted(self._used.items()))
        return f"{', '.join(shares)}; stretched {self.stretch:.2f} x"


def measured(server: Server, clients: int, seconds: float) -> float:
    """Return the writes per second of this number of pushing clients, in the server's own time."""
    report, usage = run(server, clients, seconds, pushes=True)
    took = merged(report.tallies.values()).took_s
    print(
        f"{clients:4d} clients: {rate(report):8,.0f} writes/s, p50 {percentile_ms(took, 0.5):.1f}"
        f" ms, p99 {percentile_ms(took, 0.99):.1f} ms; {usage}",
        flush=True,
    )
    return rate(report) * usage.stretch


def print_report(report: Report) -> None:
    """Print a line for each topic and one for each manner."""
    print("topic    priority  writes/s  refused/s   p50 ms   p99 ms  with retries  gap s")
    for index, priority in enumerate(PRIORITIES):
        tally = of_topic(report, topic_of(index))
        p50, p99 = percentile_ms(tally.took_s, 0.5), percentile_ms(tally.took_s, 0.99)
        total, seconds = percentile_ms(tally.total_s, 0.99), report.took_s
        print(
            f"{topic_of(index)}  {priority:8d}  {tally.stored / seconds:8.1f}"
            f"  {tally.refused / seconds:9.1f}  {p50:7.1f}  {p99:7.1f}  {total:12.1f}"
            f"  {tally.gap_s:5.1f}"
        )
    for manner in Manner:
        tally = merged(t for (_, each), t in report.tallies.items() if each is manner)
        print(
            f"{manner.value}: {tally.stored} stored, {tally.refused} refused, second tries"
            f" {tally.second_stored}/{tally.second_tries}, at most {tally.tries_max} refusals in a"
            f" row; other responses: {tally.others or 'none'}"
        )


def of_topic(report: Report, topic: str, *, obeying: bool = False) -> Tally:
    """Return the merged tallies of all clients of a topic, or of its obeying clients."""
    return merged(
        tally
        for (name, manner), tally in report.tallies.items()
        if name == topic and not (obeying and manner is Manner.GREEDY)
    )


def judge(report: Report, peak: float, pushed: float, stretch: float) -> list[tuple[bool, str]]:
    """Return every aim, and whether it is met. Times and rates are in the server's own time."""
    first = percentile_ms(of_topic(report, topic_of(0)).took_s, 0.99) / stretch
    tallies = [of_topic(report, topic_of(n), obeying=True) for n in range(len(PRIORITIES))]
    gap_s, worst = max((tally.gap_s / stretch, n) for n, tally in enumerate(tallies))
    obeying, others = merged(tallies), merged(report.tallies.values()).others
    share = obeying.second_stored / obeying.second_tries if obeying.second_tries else 1.0
    stored = rate(report) * stretch
    # Long loop iterations of a busy machine slow a crowd down more than the few clients of the
    # peak.
    quiet = peak if stretch <= QUIET else 0.0
    kept = stored >= PEAK_KEPT * max(pushed, quiet)
    shares = f"{stored / peak:.2f} of the peak, {stored / pushed:.2f} of the pushed rate"
    return [
        (first <= AIM_MS, f"p99 of priority 1000: {first:.1f} ms; aim {AIM_MS:.0f}"),
        (gap_s <= GAP_S, f"longest gap of a topic: {gap_s:.1f} s ({topic_of(worst)})"),
        (share >= SECOND_SHARE, f"second tries of obeying clients stored: {share:.1%}"),
        (kept, f"stored {stored:,.0f}/s, {shares}"),
        (not others, f"other responses: {others or 'none'}"),
    ]


def campaign(
    data_dir: Path, *, seed: int, seconds: float, peak_seconds: float, clients: int, shards: int
) -> Summary:
    """Peak, overload, verdict. ``peak_seconds``: of each step; ``clients`` 0: three times the
    number of clients at the peak.
    """
    summary = Summary(seed)
    keys = [ADMIN_KEY, *(f"obeys-{n}:w" for n in range(KEYS)), "greedy-0:w", "greedy-1:w"]
    with Server(data_dir, shards=shards, api_keys=",".join(keys)) as server:
        roles = server.roles()
        with Api(server.address, token=ADMIN_KEY) as api:
            for index, priority in enumerate(PRIORITIES):
                config = {"priority": priority, "cap_records": 100_000}
                ok(api.put(topic_of(index), config), 201)
        rates = {step: measured(server, step, peak_seconds) for step in PEAK_STEPS}
        peak = max(rates.values())
        smallest = min(step for step, found in rates.items() if found >= PEAK_SHARE * peak)
        clients = clients or max(OVERLOAD * smallest, CLIENTS_MIN)
        print(f"peak: {peak:,.0f} writes/s with {smallest}; now {clients} for {seconds:.0f} s")
        pushed = measured(server, clients, peak_seconds)
        report, usage = run(server, clients, seconds, pushes=False)
        print_report(report)
        print(f"processor time: {usage}")
        pushed = (pushed + measured(server, clients, peak_seconds)) / 2
        if server.roles() != roles:
            summary.problems.append(f"a process was replaced: {server.log_tail}")
    for holds, text in judge(report, peak, pushed, usage.stretch):
        print(f"{'pass' if holds else 'FAIL'}  {text}")
        summary.problems += [] if holds else [text]
    return summary


if __name__ == "__main__":
    options = {"seconds": 60.0, "peak_seconds": 5.0, "clients": 0, "shards": 2}
    sys.exit(program(__doc__, campaign, **options))
