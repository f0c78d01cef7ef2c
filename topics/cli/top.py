"""The command top: what a server does now.

    sample --interval--> sample --difference--> look --> lines on the terminal, or an object

A look has a member for each figure; rates are None without a sample before, as after a restart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import click

from topics.cli.measure import AWAY, Metrics, by, readiness, sync_ms
from topics.cli.shell import Shell, aligned, command, is_dumb, pass_shell
from topics.cli.units import Duration, duration, size
from topics.client import Topics, Unavailable, calls
from topics.errors import ExitCode

Look = dict[str, Any]

RATES: Final = ("writes", "reads", "errors")


class Sample(NamedTuple):
    """What a server has counted. ``topics``: head seq, records, bytes."""

    at: float
    metrics: Metrics
    topics: Mapping[str, tuple[int, int, int]]


def _rate(value: float) -> str:
    return f"{value:.1f}/s" if 0 < value < 10 else f"{value:,.0f}/s"


# By field: the title of its column, and how a value is written. Names are last: they may be long.
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
@click.option("--once", is_flag=True, help="Look for one interval, print it, and end.")
@click.option("--interval", type=Duration(least=100), default="2s", show_default=True)
@click.option("-n", "--rows", type=click.IntRange(min=0), default=20, show_default=True,
              metavar="ROWS", help="How many topics, and routers, to show.")  # fmt: skip
@pass_shell
def top(shell: Shell, once: bool, interval: int, rows: int) -> ExitCode:
    """Show what the server does now.

    Topics with the most new records stand first, routers with the longest lag. Writes and reads
    are requests (append, diff), errors all answers from 400 on; the times of fsync are those of
    the interval. Ctrl-C is the normal end (exit 0).
    """
    with shell.client() as client:
        every = looks(client, interval / 1000, rows)
        try:
            if once or shell.is_json or not sys.stdout.isatty() or is_dumb():
                next(every)
                for look in every:
                    shell.emit(look) if shell.is_json else click.echo("\n".join([*lines(look), ""]))
                    if once:
                        return ExitCode.DONE if "version" in look else ExitCode.UNREACHABLE
            else:
                draw(every)
        except KeyboardInterrupt:
            pass
    return ExitCode.DONE


def looks(client: Topics, interval_s: float, rows: int) -> Iterator[Look]:
    """One for each interval, the first at once. Raises `TopicsError` when the server cannot be
    reached at first.
    """
    before, look = None, None
    while True:
        began = time.monotonic()
        head = {"ts": int(1000 * time.time()), "server": client.target.url}
        try:
            after, ready = sample(client), readiness(client)
        except AWAY as failure:
            if look is None:
                raise
            before, look = None, {"is_ready": False, "state": f"not reachable: {failure.message}"}
        else:
            if before and after.metrics["topics_uptime_ms"] < before.metrics["topics_uptime_ms"]:
                before = None
            look = {"is_ready": ready.is_ready, "state": str(ready), **look_of(before, after, rows)}
            before = after
        yield head | look
        time.sleep(max(0.0, began + interval_s - time.monotonic()))


def sample(client: Topics) -> Sample:
    """Ask the server. Raises `TopicsError`."""
    metrics = client.call(calls.metrics())
    names = ("head_seq", "records_live", "bytes_live")
    heads, counts, sizes = (by(metrics, f"topics_topic_{name}", "topic") for name in names)
    topics = {name: (heads[name], counts[name], sizes[name]) for name in heads}
    if metrics["topics_topic_metrics_truncated"]:  # the list has all, unless a shard is down
        with suppress(Unavailable):
            topics = {
                each.name: (each.head_seq, each.count, each.bytes) for each in client.topics()
            }
    return Sample(time.monotonic(), metrics, topics)


def look_of(before: Sample | None, after: Sample, rows: int) -> Look:
    """What has happened between two samples."""
    metrics, then = after.metrics, before.metrics if before else {}

    def rate(now: float, earlier: float) -> float | None:
        return max(now - earlier, 0) / (after.at - before.at) if before else None

    def requests(label: str, *parts: str) -> float | None:
        now, earlier = (
            sum(count for text, count in by(each, "topics_http_requests_total", label).items()
                if text.startswith(parts))
            for each in (metrics, then)
        )  # fmt: skip
        return rate(now, earlier)

    def of(label: str, name: str, each: Metrics = metrics) -> dict[str, int]:
        return by(each, f"topics_{label}_{name}", label)

    heads = {name: head for name, (head, *_) in before.topics.items()} if before else {}
    ready, in_flight = of("topic", "queue_ready"), of("topic", "queue_in_flight")
    topics: list[Look] = [
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
    routers: list[Look] = [
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
        "streams": by(metrics, "topics_streams", "kind"),
        "disk_free_bytes": metrics["topics_disk_free_bytes"],
        "fsync_p50_ms": sync_ms(metrics, then, 0.5) if before else None,
        "fsync_p99_ms": sync_ms(metrics, then, 0.99) if before else None,
        "topics": topics[:rows],
        "routers": routers[:rows],
    }


def draw(every: Iterator[Look]) -> None:
    """Show each look in place of the one before."""
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        for look in every:
            text = "\n".join(lines(look))
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


def lines(look: Look) -> list[str]:
    """A head, and tables with the names at the right: they may be long."""
    if "version" not in look:
        return [f"{look['server']}  {look['state']}"]

    def shown(value: float | str | None, show: Callable[[Any], str]) -> str:
        return "-" if value is None else show(value)

    rates = (f"{each} {shown(look[f'{each}_per_s'], _rate)}" for each in RATES)
    p50, p99 = (shown(look[f"fsync_{each}_ms"], "{:.1f} ms".format) for each in ("p50", "p99"))
    streams = ", ".join(f"{count} {kind}" for kind, count in look["streams"].items() if count)
    free = size(look["disk_free_bytes"])
    head = "topics {version}  {server}  up {up}  {state}"
    written = [
        head.format(**look, up=duration(look["uptime_ms"])),
        "  ".join([*rates, f"streams {streams or 0}"]),
        f"fsync p50 {p50} p99 {p99}  disk free {free}",
    ]
    for columns, rows in ((TOPICS, look["topics"]), (ROUTERS, look["routers"])):
        cells = [[title for title, _ in columns.values()]]
        for row in rows:
            cells += [[shown(row[field], show) for field, (_, show) in columns.items()]]
        written += ["", *aligned(cells)] if rows else []
    return written
