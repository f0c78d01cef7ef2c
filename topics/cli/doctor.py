"""The command doctor: checks a server and its machine.

Each check is a function in a table. It yields a `Finding` for each fault. Its docstring is the line
that is printed if there is no fault.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from topics import __version__
from topics.cli.measure import Metrics, Readiness, by_label, readiness, sync_ms
from topics.cli.shell import Shell, command, pass_shell
from topics.cli.units import duration, size
from topics.client import NotFound, Refused, Topics, TopicsError, Unavailable, calls
from topics.config import Settings
from topics.errors import ExitCode

LOG_FIX: Final = "wait; if this persists, check the server's log"
FREE_BYTES: Final = 1 << 30
NEAR_CAP_SHARE: Final = 0.8  # usage above this share of a limit is a fault
SYNC_MAX_MS: Final = 100.0
LAG_MAX_MS: Final = 60_000
CLOCK_AHEAD_MAX_MS: Final = 3_600_000  # the server's limit (topics.engine.future_timestamps)
NAMES_MAX: Final = 5


class Finding(NamedTuple):
    """A fault, and how to fix it."""

    what: str
    fix: str


class ServerState(NamedTuple):
    """A server with its metrics and readiness."""

    client: Topics
    metrics: Metrics
    ready: Readiness


# Checks of a server

STATES: Final = {
    "damaged": "its log cannot be read: topics verify DIR, then restore a backup or run"
    " topics repair DIR",
    "read_only": "a write to its disk failed: check the log and the disk, then restart the server",
    "directory_lost": "move its data directory back, or restart it on the current directory",
    "no_room": "the disk is full: delete files or records, then it continues automatically",
    "disk_stalled": "the disk does not respond: check dmesg, and the other users of the disk",
    "stalled": "its process hangs or gets no CPU time: check the load of the machine",
    "permission_denied": "it may not open a file, which the server's log names (start failed):"
    " chown -R the data directory to the user of the server",
    "disk_full": "it cannot start on a full disk: delete files, then it starts automatically",
    "disk_failed": "it cannot start: check dmesg and the mount, then it starts automatically",
    "start_failed": "the server's log has the cause (start failed); it is restarted automatically",
    "recovering": "it replays its log: wait",
}
SERVER_FIX: Final = "topics serve starts a server; --url, TOPICS_URL or a context names another"
KEY_FIX: Final = "set a key with the scope read by TOPICS_API_KEY, --key-file or a context"


def version(server: ServerState) -> Iterator[Finding]:
    """The server and this command have the same version."""
    other = server.metrics["topics_build_info"][0]["version"]
    if other != __version__:
        what = f"the server has version {other}, this command {__version__}"
        yield Finding(what, "restart the server after an upgrade, or upgrade this program")


def shards(server: ServerState) -> Iterator[Finding]:
    """The server is ready, and all shards read and write."""
    for state, numbers in server.ready.shards.items():
        for number in numbers:
            fix = STATES.get(state, LOG_FIX)
            yield Finding(f"shard {number} is {state}", fix)
    if not server.ready.is_ready and not server.ready.shards:
        yield Finding(server.ready.reason, LOG_FIX)


def keys(server: ServerState) -> Iterator[Finding]:
    """A server that other machines can reach requires keys."""
    url = server.client.target.url
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return
    with suppress(Refused), Topics(url, key="none", retry=server.client.retry) as stranger:
        stranger.call(calls.list_topics("", None))
        what = f"every client that can reach {host} may read, write and delete all data"
        yield Finding(what, "set TOPICS_API_KEYS_FILE (topics keys hash), or TOPICS_HOST=127.0.0.1")


def fsync(server: ServerState) -> Iterator[Finding]:
    """The disk is fast enough."""
    took_ms = sync_ms(server.metrics, None, 0.99) or 0.0
    if took_ms > SYNC_MAX_MS:
        fix = "move the data directory to a local SSD, or find other writers to this disk"
        yield Finding(f"one fsync in a hundred takes longer than {duration(took_ms)}", fix)


def disk(server: ServerState) -> Iterator[Finding]:
    """The server's disk has free space."""
    yield from _space(server.metrics["topics_disk_free_bytes"])


def _space(free: int) -> Iterator[Finding]:
    if 0 < free < FREE_BYTES:  # 0 means that no shard reports the free space
        fix = "delete records or topics, set ttl_ms or cap_bytes, or enlarge the disk"
        yield Finding(f"only {size(free)} are free on the disk of the data", fix)


USED: Final = {"max_total_bytes": "bytes_live", "max_connections": "connections_open"}
LIMITS: Final = {"max_connections": "the limit of open files (ulimit -n)"}


def caps(server: ServerState) -> Iterator[Finding]:
    """The server is well below all of its limits."""
    for limit, most in by_label(server.metrics, "topics_limit_max", "limit").items():
        name = USED.get(limit, limit.removeprefix("max_"))
        used = server.metrics.get(f"topics_{name}", 0)  # limits per key have no metric
        if most and used >= NEAR_CAP_SHARE * most:
            setting = LIMITS.get(limit, f"TOPICS_{limit.upper()}")
            fix = f"delete or close unused ones, or raise {setting}"
            yield Finding(f"{used} of {most} ({limit}) are in use", fix)


def dead_letters(server: ServerState) -> Iterator[Finding]:
    """There are no dead letters."""
    queues = map(server.client.topic, by_label(server.metrics, "topics_topic_queue_ready", "topic"))
    named: dict[str, list[str]] = {}
    for queue in queues:
        with suppress(NotFound, Unavailable):
            if dead := queue.state().config["dead_letter"]:
                named.setdefault(dead, []).append(queue.name)
    for dead, names in named.items():
        with suppress(NotFound, Unavailable):
            if count := server.client.topic(dead).state().count:
                what = f"{dead} holds {count} dead letters of {', '.join(names)}"
                fix = f"topics read {dead} shows the cause (meta), topics queue redrive {dead}"
                yield Finding(what, f"{fix} moves them back")


def lag(server: ServerState) -> Iterator[Finding]:
    """Routers forward records without a long lag."""
    behind = by_label(server.metrics, "topics_router_lag_records", "router")
    for name, lag_ms in by_label(server.metrics, "topics_router_lag_ms", "router").items():
        if lag_ms > LAG_MAX_MS:
            what = f"router {name} is {duration(lag_ms)} behind ({behind[name]} records)"
            fix = "check whether its dest is full (cap with discard: reject) or its shard is down"
            yield Finding(what, fix)


def clock(server: ServerState) -> Iterator[Finding]:
    """No records have times in the future."""
    if count := server.metrics.get("topics_topics_ahead_of_clock", 0):
        ahead = (time.time() * 1000) + CLOCK_AHEAD_MAX_MS
        found = (each.name for each in server.client.topics() if (each.last_write_ts or 0) > ahead)
        names = ", ".join([*islice(found, NAMES_MAX)])
        what = f"{count} topics have records with future times, which ttl_ms keeps: {names}"
        fix = "correct the clock, then topics export, rm and import (runbook.md#clockahead)"
        yield Finding(what, fix)


# Checks of the machine with the data directory

VOLATILE: Final = ("tmpfs", "ramfs")
REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "glusterfs")


def free_space(directory: Path) -> Iterator[Finding]:
    """The disk of the data directory has free space."""
    yield from _space(shutil.disk_usage(directory).free)


def file_system(directory: Path, mounts: str = "/proc/mounts") -> Iterator[Finding]:
    """The data directory is on a local disk."""
    lines = [line.split() for line in Path(mounts).read_text().splitlines()]
    # If a path is mounted several times, the last mount applies.
    kinds = {Path(place): kind for _, place, kind, *_ in lines}
    kind = next(kinds[each] for each in (directory.resolve() / "_").parents if each in kinds)
    if kind in VOLATILE:
        yield Finding(f"{directory} is in memory ({kind})", "use a directory on a disk")
    if kind in REMOTE:
        what = f"{directory} is on a network file system ({kind})"
        yield Finding(what, "use a local disk, because locks and fsync are not reliable there")


def permissions(directory: Path) -> Iterator[Finding]:
    """Only the server may use the data directory."""
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        what = f"this user may not use {directory}, which belongs to user {directory.stat().st_uid}"
        yield Finding(what, "start the server as its owner, or chown -R the directory")
    if others := directory.stat().st_mode & 0o077:
        what = f"other users may access {directory} (mode {others:03o})"
        yield Finding(what, f"chmod 700 {directory}")


SERVER_CHECKS: Final = (version, shards, keys, fsync, disk, caps, dead_letters, lag, clock)
MACHINE_CHECKS: Final = (free_space, file_system, permissions)


@command("doctor")
@click.option(
    "--data-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="The data directory on this machine (TOPICS_DATA_DIR, ./topics-data if it exists).",
)  # fmt: skip
@pass_shell
def doctor(shell: Shell, data_dir: Path | None) -> ExitCode:
    """Find problems, and report how to fix them.

    The command changes nothing. The exit code is 0 if all checks pass, and 1 if one fails or the
    server does not respond.
    """
    is_well = True
    for name, reason, findings in _results(shell, data_dir):
        is_well = is_well and not findings
        if shell.is_json:
            for each in findings or [Finding(reason, "")]:
                shell.emit({"check": name, "is_well": not findings, **each._asdict()})
        elif findings:
            click.echo("\n".join(f"WRONG  {what}\n       Fix: {fix}" for what, fix in findings))
        else:
            click.echo(f"ok     {reason}")
    return ExitCode.DONE if is_well else ExitCode.FAILED


def _results(shell: Shell, data_dir: Path | None) -> Iterator[tuple[str, str, list[Finding]]]:
    """Yield the name of each check, the message if it finds nothing, and its findings."""
    usual = Path(os.environ.get("TOPICS_DATA_DIR") or Settings().data_dir)
    directory = data_dir or (usual if usual.is_dir() else None)
    with shell.client() as client:
        try:
            server = ServerState(client, client.call(calls.metrics()), readiness(client))
        except TopicsError as failure:
            is_key = isinstance(failure, Refused)
            yield "server", "", [Finding(failure.message, KEY_FIX if is_key else SERVER_FIX)]
        else:
            yield "server", f"{client.target.url} responds.", []
            for check in SERVER_CHECKS:
                findings = [
                    Finding(what, fix.replace(" DIR", f" {directory or 'DIR'}"))
                    for what, fix in check(server)
                ]
                yield check.__name__, check.__doc__ or "", findings
    if directory is None:
        shell.print_note(
            "the data directory was not checked; on the server's machine, name it with --data-dir"
        )
        return
    for local in MACHINE_CHECKS:
        yield local.__name__, local.__doc__ or "", [*local(directory)]
