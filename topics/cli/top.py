"""The command top: shows the current activity of a server.

    sample --interval--> sample --difference--> report --> lines on the terminal, or a JSON object

A report has a member for each figure. Rates are None if there is no earlier sample, for example
after a restart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import click

from topics.cli.measure import TEMPORARY_ERRORS, Metrics, by_label, readiness, sync_ms
from topics.cli.shell import Shell, aligned, command, is_dumb_terminal, pass_shell
from topics.cli.units import Duration, duration, size
from topics.client import Topics, Unavailable, calls
from topics.errors import ExitCode

Report = dict[str, Any]

RATES: Final = ("writes", "reads", "errors")


class Sample(NamedTuple):
    """The counters of a server at one point in time. ``topics`` contains the head seq, records and
    bytes by name.
    """

    at: float
    metrics: Metrics
    topics: Mapping[str, tuple[int, int, int]]


def _rate(value: float) -> str:
    return f"{value:.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


# The column title and the value format by field. Names may be long, so they are last.
TOPICS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "records_per_s": ("NEW", _rate),
    "records": ("RECORDS", str),
    "bytes": ("BYTES", size),
    "ready": ("READY", str),
    "in_flight": ("IN FLIGHT", str),
    "topic": ("TOPIC", str),
}
ROUTERS: Final[Mapping[str, tuple[str, Callable[[Any], str]]]] = {
    "records_per_s": ("NEW", _rate),
    "lag_records": ("BEHIND", str),
    "lag_ms": ("LAG", duration),
    "router": ("ROUTER", str),
}


@command("top")
@click.option("--once", is_flag=True, help="Print one interval and exit.")
@click.option("--interval", type=Duration(least=100), default="2s", show_default=True)
@click.option("-n", "--rows", type=click.IntRange(min=0), default=20, show_default=True,
              metavar="ROWS", help="The number of topics, and of routers, to show.")  # fmt: skip
@pass_shell
def top(shell: Shell, once: bool, interval: int, rows: int) -> ExitCode:
    """Show the current activity of the server.

    Topics with the most new records and routers with the longest lag are listed first. Writes are
    append requests, reads are diff requests, and errors are responses with a status of 400 or
    higher. The fsync times are those of the interval. Press Ctrl-C to stop (exit code 0).
    """
    with shell.client() as client:
        every = reports(client, interval / 1000, rows)
        try:
            if once or shell.is_json or not sys.stdout.isatty() or is_dumb_terminal():
                next(every)
                for each in every:
                    shell.emit(each) if shell.is_json else click.echo("\n".join([*lines(each), ""]))
                    if once:
                        return ExitCode.DONE if "version" in each else ExitCode.UNREACHABLE
            else:
                draw(every)
        except KeyboardInterrupt:
            pass
    return ExitCode.DONE


def reports(client: Topics, interval_s: float, rows: int) -> Iterator[Report]:
    """Yield a report for each interval, the first immediately. Raise `TopicsError` if the server
    cannot be reached when the command starts.
    """
    before, report = None, None
    while True:
        began = time.monotonic()
        head = {"ts": int(1000 * time.time()), "server": client.target.url}
        try:
            after, ready = sample(client), readiness(client)
        except TEMPORARY_ERRORS as failure:
            if report is None:
                raise
            before, report = None, {"is_ready": False, "state": f"unreachable: {failure.message}"}
        else:
            if before and after.metrics["topics_uptime_ms"] < before.metrics["topics_uptime_ms"]:
                before = None
            state = {"is_ready": ready.is_ready, "state": str(ready)}
            before, report = after, state | report_of(before, after, rows)
        yield head | report
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


def sample(client: Topics) -> Sample:
    """Return the current counters of the server. Raise `TopicsError`."""
    metrics = client.call(calls.metrics())
    names = ("head_seq", "records_live", "bytes_live")
    heads, counts, sizes = (by_label(metrics, f"topics_topic_{name}", "topic") for name in names)
    topics = {name: (heads[name], counts[name], sizes[name]) for name in heads}
    if metrics["topics_topic_metrics_truncated"]:  # the list is complete unless a shard is down
        with suppress(Unavailable):
            topics = {
                each.name: (each.head_seq, each.count, each.bytes) for each in client.topics()
            }
    return Sample(time.monotonic(), metrics, topics)


def report_of(before: Sample | None, after: Sample, rows: int) -> Report:
    """Return the report for the time between two samples."""
    metrics, then = after.metrics, before.metrics if before else {}

    def rate(now: float, earlier: float) -> float | None:
        return max(now - earlier, 0) / (after.at - before.at) if before else None

    def requests(label: str, *parts: str) -> float | None:
        now, earlier = (
            sum(count for text, count in by_label(each, "topics_http_requests_total", label).items()
                if text.startswith(parts))
            for each in (metrics, then)
        )  # fmt: skip
        return rate(now, earlier)

    def of(label: str, name: str, each: Metrics = metrics) -> dict[str, int]:
        return by_label(each, f"topics_{label}_{name}", label)

    heads = {name: head for name, (head, *_) in before.topics.items()} if before else {}
    ready, in_flight = of("topic", "queue_ready"), of("topic", "queue_in_flight")
    topics: list[Report] = [
        {
            "records_per_s": rate(head, heads.get(name, 0)),
            "records": count,
            "bytes": held,
            "ready": ready.get(name),
            "in_flight": in_flight.get(name),
            "topic": name,
        }
        for name, (head, count, held) in after.topics.items()
    ]
    behind, lags = of("router", "lag_records"), of("router", "lag_ms")
    forwarded = of("router", "forwarded_total", then)
    routers: list[Report] = [
        {
            "records_per_s": rate(total, forwarded.get(name, 0)),
            "lag_records": behind[name],
            "lag_ms": lags[name],
            "router": name,
        }
        for name, total in of("router", "forwarded_total").items()
    ]
    topics.sort(key=lambda each: (-(each["records_per_s"] or 0), -each["bytes"]))
    routers.sort(key=lambda each: (-each["lag_ms"], -(each["records_per_s"] or 0)))
    return {
        "version": metrics["topics_build_info"][0]["version"],
        "uptime_ms": metrics["topics_uptime_ms"],
        "writes_per_s": requests("route", "append"),
        "reads_per_s": requests("route", "diff"),
        "errors_per_s": requests("status", "4", "5"),
        "streams": by_label(metrics, "topics_streams", "kind"),
        "disk_free_bytes": metrics["topics_disk_free_bytes"],
        "fsync_p50_ms": sync_ms(metrics, then, 0.5) if before else None,
        "fsync_p99_ms": sync_ms(metrics, then, 0.99) if before else None,
        "topics": topics[:rows],
        "routers": routers[:rows],
    }


def draw(every: Iterator[Report]) -> None:
    """Show each report in place of the previous one."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        for each in every:
            text = "\n".join(lines(each))
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def lines(report: Report) -> list[str]:
    """Return the lines of a report: a header, and tables with the names on the right."""
    if "version" not in report:
        return [f"{report['server']}  {report['state']}"]

    def shown(value: float | str | None, show: Callable[[Any], str]) -> str:
        return "-" if value is None else show(value)

    rates = (f"{each} {shown(report[f'{each}_per_s'], _rate)}" for each in RATES)
    p50, p99 = (shown(report[f"fsync_{each}_ms"], "{:.1f} ms".format) for each in ("p50", "p99"))
    streams = ", ".join(f"{count} {kind}" for kind, count in report["streams"].items() if count)
    free = size(report["disk_free_bytes"])
    head = "topics {version}  {server}  up {up}  {state}"
    written = [
        head.format(**report, up=duration(report["uptime_ms"])),
        "  ".join([*rates, f"streams {streams or 0}"]),
        f"fsync p50 {p50} p99 {p99}  disk free {free}",
    ]
    for columns, rows in ((TOPICS, report["topics"]), (ROUTERS, report["routers"])):
        cells = [[title for title, _ in columns.values()]]
        for row in rows:
            cells += [[shown(row[field], show) for field, (_, show) in columns.items()]]
        written += ["", *aligned(cells)] if rows else []
    return written
