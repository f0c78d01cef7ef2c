"""The command standby: keeps a restorable copy of a running server on another machine, and promotes
it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, Final, cast

import click
import msgspec

from topics.cli import units
from topics.cli.backup import requested
from topics.cli.server import parse_generation, restore_errors
from topics.cli.shell import Failed, InvalidInput, Shell, group, pass_shell
from topics.client import Invalid, Refused, Topics, TopicsError, calls
from topics.errors import ExitCode
from topics.storage.backup_restore import NotABackup
from topics.storage.fence import Fenced
from topics.storage.promote import promote as promote_standby
from topics.storage.standby import (
    KEEP_DEFAULT,
    BadStandby,
    Generation,
    LogVolume,
    Origin,
    SourceOlder,
    Standby,
    StandbyInUse,
)

RESPONSE_S: Final = 3.0  # timeout of the request that checks whether the source responds
STOP_S: Final = 30.0  # maximum time for which a promotion waits for the loop to stop
PAUSE_MAX_S: Final = 30.0  # longest interval between two rounds after a failure
DIRECTORY: Final = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))


@group("standby")
def standby() -> None:
    """Keep a copy of a server on another machine."""


# The loop


class Figures:
    """The loop's metrics, in the Prometheus text format."""

    def __init__(self) -> None:
        self.newest: Generation | None = None
        self.started_ms = round(time.time() * 1000)
        self.kept = self.finished = self.failed = self.received_bytes = 0

    def text(self) -> str:
        """Return the metrics in the Prometheus text format."""
        newest = self.newest
        as_of_ms = newest.as_of_ms if newest else self.started_ms
        age_s = max(0.0, time.time() - as_of_ms / 1000)
        rows: list[tuple[str, str, str, str, float]] = [
            ("rounds_total", "counter", "Rounds.", '{end="finished"}', self.finished),
            ("rounds_total", "counter", "Rounds.", '{end="failed"}', self.failed),
            ("received_bytes_total", "counter", "Bytes received.", "", self.received_bytes),
            ("generations", "gauge", "Generations kept.", "", self.kept),
            ("age_seconds", "gauge", "Age of the newest generation, or of the loop.", "", age_s),
        ]
        if newest is not None:
            rows += [
                ("generation", "gauge", "Number of the newest generation.", "", newest.number),
                ("round_seconds", "gauge", "Duration of its transfer.", "", newest.seconds),
                ("round_bytes", "gauge", "Bytes of its transfer.", "", newest.received_bytes),
            ]
        lines: list[str] = []
        for name, kind, text, labels, value in rows:
            head = f"# HELP topics_standby_{name} {text}"
            if head not in lines:
                lines += [head, f"# TYPE topics_standby_{name} {kind}"]
            lines.append(f"topics_standby_{name}{labels} {value}")
        return "\n".join(lines) + "\n"


@standby.command("run")
@DIRECTORY
@click.option(
    "--every",
    type=units.Duration(least=100),
    default="5s",
    show_default=True,
    help="Interval between rounds.",
)
@click.option(
    "--keep",
    type=click.IntRange(1),
    default=KEEP_DEFAULT,
    show_default=True,
    help="Number of generations to keep.",
)
@click.option("--once", is_flag=True, help="Perform one round and exit; for cron.")
@click.option(
    "--rate", type=units.BYTES, metavar="BYTES", help="Receive at most this number of bytes/s."
)
@click.option("--metrics-port", metavar="[HOST:]PORT", help="Serve metrics for Prometheus.")
@click.option("--accept-older", is_flag=True, help="Continue with a server that has older data.")
@pass_shell
def run(
    shell: Shell,
    directory: Path,
    every: int,
    keep: int,
    once: bool,
    rate: int | None,
    metrics_port: str | None,
    accept_older: bool,
) -> None:
    """Keep DIR a restorable copy of the server.

    \b
    topics --url https://a.example standby run /srv/standby
    topics standby status /srv/standby
    topics standby promote /srv/standby

    The first round copies all data; each later round copies only new data. The key needs the scope
    admin and no prefixes. Each round adds a generation, which can be restored with topics restore
    DIR@GENERATION. A killed or interrupted round is continued. If the server does not respond, the
    rounds are retried indefinitely. A server that was restored or has lost its data is refused,
    unless --accept-older is given, because its data would soon replace all generations.
    """
    copy, figures = Standby(directory), Figures()
    with shell.client() as client, _usage(), _metrics(metrics_port, figures):
        # User info in the URL is a secret, so it is not stored.
        copy.create(Origin(re.sub("//[^/@]*@", "//", client.target.url)))
        receive = partial(_receive, client, copy, rate, accepts_older=accept_older)
        with copy.lock():
            _rounds(shell, copy, receive, figures, every / 1000, keep, is_once=once)


def _rounds(
    shell: Shell,
    copy: Standby,
    receive: Callable[[], Generation],
    figures: Figures,
    every_s: float,
    keep: int,
    *,
    is_once: bool,
) -> None:
    """Run rounds until the process is stopped. If only one round was requested, raise its failure.
    Also raise the failure if no generation exists and the server refuses the request, because the
    key may be wrong.
    """
    reported, pause_s = "", every_s
    figures.newest, figures.kept = copy.newest(), len(copy.numbers())
    while True:
        started = time.monotonic()
        try:
            found = receive()
            copy.prune(keep)
        except (TopicsError, Failed, OSError) as error:
            if is_once or (isinstance(error, Invalid | Refused) and figures.newest is None):
                raise
            figures.failed += 1
            text = f"{copy.path}: {error}" if isinstance(error, OSError) else str(error)
            if text != reported:
                shell.print_note(f"{text}; trying again")
            reported, pause_s = text, min(2 * pause_s, max(PAUSE_MAX_S, every_s))
        else:
            figures.newest, figures.kept = found, len(copy.numbers())
            figures.finished += 1
            figures.received_bytes += found.received_bytes
            pause_s = every_s
            if is_once or reported or figures.finished == 1:
                size = units.size(found.received_bytes)
                shell.done(_summary(found), f"{copy.path}: generation {found.number}, {size}")
            reported = ""
        if is_once:
            return
        time.sleep(max(0.0, started + pause_s - time.monotonic()))


def _receive(client: Topics, copy: Standby, rate: int | None, *, accepts_older: bool) -> Generation:
    """Receive the next generation. Raise `TopicsError`, `Failed` or OSError."""
    counters = _counters(client)
    known, files = copy.known()
    body = msgspec.json.encode({"files": files})
    headers = {"Content-Type": "application/json"}
    requested_ms = round(time.time() * 1000)
    try:
        with requested(client, "POST", None, rate, content=body, headers=headers) as archive:
            return copy.receive(
                *(cast("IO[bytes]", archive), known, counters),
                requested_ms=requested_ms,
                accepts_older=accepts_older,
            )
    except NotABackup as error:
        raise Failed(f"the backup is incomplete: {error}", "broken_off") from None
    except SourceOlder as error:
        raise Failed(str(error), "source_older") from None


def _counters(client: Topics) -> LogVolume | None:
    """Return the amount of data that the server has written since its startup, or None if it is
    unavailable.
    """
    try:
        metrics = client.once(calls.metrics())
    except TopicsError:
        return None
    return LogVolume(metrics["topics_wal_frames_total"], metrics["topics_wal_bytes_written_total"])


@contextmanager
def _metrics(address: str | None, figures: Figures) -> Iterator[None]:
    """Serve the metrics while the block runs."""
    if address is None:
        yield
        return
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit() or int(port) > 65_535:
        raise InvalidInput(f"--metrics-port {address}: not a port or HOST:PORT")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = figures.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log no requests."""

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

    try:
        server = Server((host or "127.0.0.1", int(port)), Handler)
    except OSError as error:
        raise Failed(f"--metrics-port {address}: {error.strerror}", "no_metrics") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _usage() -> Iterator[None]:
    """Convert the errors that a standby directory raises to command errors."""
    try:
        yield
    except (BadStandby, StandbyInUse) as error:
        raise InvalidInput(str(error)) from None
    except Fenced as error:
        raise Failed(str(error), "fenced") from None


# The state


def _summary(found: Generation) -> dict[str, Any]:
    return {
        "generation": found.number,
        "created_ms": found.created_ms,
        "received_bytes": found.received_bytes,
        "seconds": found.seconds,
    }


@standby.command("status")
@DIRECTORY
@click.option("--max-age", type=units.DURATION, help="Fail if the copy is older.")
@click.option("--verify", is_flag=True, help="Read all files of the newest generation.")
@pass_shell
def status(shell: Shell, directory: Path, max_age: int | None, verify: bool) -> ExitCode:
    """Show the age of a copy, and the amount of data that it lacks.

    Exit code: 0 if the copy is usable, 1 if it is older than --max-age, 3 if it is damaged, 4 if it
    has no generation, 6 if the server does not respond.
    """
    with _usage():
        copy = Standby(directory)
        origin, numbers = copy.origin(), copy.numbers()
    intact = copy.intact()
    newest = intact[-1] if intact else None
    damaged = copy.damaged(newest) if verify and newest else []
    state = _responds(shell, origin)
    with shell.client() as client:
        counters = _counters(client) if state else None
    behind = None
    if newest is not None and newest.counters is not None and counters is not None:
        behind = counters.since(newest.counters)
    if shell.is_json:
        shell.emit(
            {
                "source": origin.url,
                "is_reachable": bool(state),
                "generations": [each.number for each in intact],
                "damaged": sorted({*numbers} - {each.number for each in intact}),
                "damaged_files": damaged,
                "newest": None if newest is None else _summary(newest),
                "age_ms": None if newest is None else _age_ms(newest),
                "behind": None if behind is None else behind._asdict(),
            }
        )
    else:
        click.echo(f"source       {origin.url} ({state or 'does not respond'})")
        if newest is None:
            click.echo("generations  none")
        else:
            click.echo(f"newest       {newest.number}, {units.duration(_age_ms(newest))} old")
            oldest = units.duration(_age_ms(intact[0]))
            click.echo(f"oldest       {intact[0].number}, {oldest} old")
            lacks = "unknown" if behind is None else _lacks(behind)
            if behind is None and newest.counters and counters:
                lacks += ", because the server was restarted since then"
            click.echo(f"lacks        {lacks}")
        if len(numbers) > len(intact):
            click.echo(f"damaged      {len(numbers) - len(intact)}")
        for file in damaged:
            click.echo(f"damaged      {file}")
    if damaged or len(numbers) > len(intact):
        return ExitCode.DAMAGED
    if newest is None:
        return ExitCode.NOT_FOUND
    if max_age is not None and _age_ms(newest) > max_age:
        return ExitCode.FAILED
    return ExitCode.DONE if state else ExitCode.UNREACHABLE


def _age_ms(generation: Generation) -> int:
    return max(0, round(time.time() * 1000) - generation.as_of_ms)


def _lacks(volume: LogVolume) -> str:
    return f"{volume.writes:,.0f} writes, {units.size(round(volume.bytes))} of the log"


# The promotion


@standby.command("promote")
@click.argument("source", metavar="DIR[@GENERATION]")
@click.option("--force", is_flag=True, help="Promote even if the source responds.")
@click.option("--as-new", is_flag=True, help="Give all topics a new epoch: readers start again.")
@click.option("--damaged", is_flag=True, help="Promote files that were damaged at the source.")
@click.option(
    "--fence",
    envvar="TOPICS_FENCE",
    type=click.Path(path_type=Path),
    help="File shared with the source, which keeps it from starting (TOPICS_FENCE).",
)
@pass_shell
def promote(
    shell: Shell, source: str, force: bool, as_new: bool, damaged: bool, fence: Path | None
) -> None:
    """Turn a copy into the data directory of a server.

    \b
    topics standby promote /srv/standby
    topics serve --data-dir /srv/standby

    The command stops topics standby run, and refuses while the source responds, because one history
    must not have two writers. Cursors, epochs, seqs, event ids and idempotency keys continue. Each
    topic skips the seqs that the source may have assigned since the copy was made, and reports them
    to readers as lost. All other generations are removed: restore or copy them first.
    """
    directory, number = parse_generation(source)
    copy, loss = Standby(directory), None
    with _usage():
        if (directory / "meta").exists():
            # DIR is a data directory. If a server has locked it, do not stop that server.
            if not (directory / "standby.json").exists():
                shell.print_note(f"{directory} was promoted before, or is a data directory")
                return
            lock = copy.lock()
        else:
            origin = copy.origin()
            if not force and (state := _responds(shell, origin)):
                what = f"{origin.url} responds ({state}): stop it, or promote with --force"
                raise Failed(what, "source_responds")
            loss = _expected_loss(copy, number)
            lock = _stop_loop(copy)
        with lock, restore_errors(str(directory), f"{directory} remains a standby"):
            generation, findings = promote_standby(
                copy, number=number, as_new=as_new, with_damage=damaged, fence=fence
            )
    for finding in findings:
        shell.print_note(finding)
    if generation is None:
        shell.print_note(f"{directory} was promoted before")
        return
    age = units.duration(_age_ms(generation))
    text = f"{directory}: generation {generation.number}, as of {age} ago; later writes are lost"
    if loss is not None:
        text += f", at the last rate {_lacks(loss)}"
    shell.done(_summary(generation) | {"expected_loss": loss and loss._asdict()}, text)


def _responds(shell: Shell, origin: Origin) -> str:
    """Return a description of the source's response, or an empty string if it does not respond."""
    shell.url, shell.timeout = shell.url or origin.url, RESPONSE_S
    with shell.client() as client:
        try:
            client.once(calls.ready())
        except TopicsError as error:
            return f"{error.status}" if error.status else ""
    return "ready"


def _stop_loop(copy: Standby) -> IO[str]:
    """Stop the process that has locked the directory. Return the lock of this process."""
    deadline = time.monotonic() + STOP_S
    while True:
        try:
            return copy.lock()
        except StandbyInUse as error:
            # The pid may belong to a process in another container or on another machine.
            if time.monotonic() > deadline or not _has_open(error.pid, copy.path / "LOCK"):
                raise
            with suppress(ProcessLookupError):
                os.kill(error.pid, signal.SIGTERM)
            time.sleep(0.2)


def _has_open(pid: int, file: Path) -> bool:
    """Return whether a process on this machine has opened the file."""
    with suppress(FileNotFoundError, PermissionError):
        for opened in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                if file.samefile(opened):
                    return True
    return False


def _expected_loss(copy: Standby, number: int | None) -> LogVolume | None:
    """From the rate between earlier generations, estimate the amount of data that the source has
    written since a generation, or since the newest one.
    """
    # A damaged manifest must not prevent a promotion, so only intact ones are used.
    found = [each for each in copy.intact() if number is None or each.number <= number]
    found = found[-KEEP_DEFAULT:]
    if len(found) < 2:
        return None
    first, last = found[0], found[-1]
    span_ms = last.created_ms - first.created_ms
    if first.counters is None or last.counters is None or span_ms <= 0:
        return None
    written = last.counters.since(first.counters)
    share = _age_ms(last) / span_ms
    return written and LogVolume(*(round(share * each) for each in written))
