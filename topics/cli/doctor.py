"""The command doctor: checks of a server and of its machine.

Each check is a function in a table. It yields a `Finding` for each fault, with the mend. Its
docstring is the line that is printed when it finds nothing.
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
from topics.cli.measure import Metrics, Readiness, by, readiness, sync_ms
from topics.cli.shell import Shell, command, pass_shell
from topics.cli.units import duration, size
from topics.client import NotFound, Refused, Topics, TopicsError, Unavailable, calls
from topics.config import Settings
from topics.errors import ExitCode

FREE_BYTES: Final = 1 << 30
NEAR: Final = 0.8  # of a cap
SYNC_MAX_MS: Final = 100.0
LAG_MAX_MS: Final = 60_000
AHEAD_MS: Final = 3_600_000  # the server's limit (topics.engine.ahead)
NAMES_MAX: Final = 5


class Finding(NamedTuple):
    """What is wrong, and what to do about it."""

    what: str
    mend: str


class Server(NamedTuple):
    """What is known of a server."""

    client: Topics
    metrics: Metrics
    ready: Readiness


# Of a server

STATES: Final = {
    "damaged": "its log cannot be read: topics verify DIR, then restore a backup, or topics repair",
    "read_only": "its disk has failed a write: look at the log and the disk, then restart it",
    "directory_lost": "move its data directory back, or stop it and start it on what is there now",
    "no_room": "the disk is full: delete files or records, and it goes on by itself",
    "disk_stalled": "the disk does not answer: look at dmesg, and at what else uses the disk",
    "stalled": "its process hangs or gets no processor time: look at the load of the machine",
    "permission_denied": "it may not open a file of its data, which the server's log names"
    " (start failed): chown -R the data directory to the user of the server",
    "disk_full": "it cannot start on a full disk: delete files, and it starts by itself",
    "disk_failed": "it cannot start: look at dmesg and at the mount; it starts by itself",
    "start_failed": "the server's log has the cause (start failed); it is started again by itself",
    "recovering": "it reads its log: wait",
}
SERVER_MEND: Final = "topics serve starts a server; --url, TOPICS_URL or a context names another"
KEY_MEND: Final = "TOPICS_API_KEY, --key-file or a context has the key; it needs the scope read"


def version(server: Server) -> Iterator[Finding]:
    """Server and command are of one version."""
    other = server.metrics["topics_build_info"][0]["version"]
    if other != __version__:
        what = f"the server is version {other}, this command is {__version__}"
        yield Finding(what, "restart the server after an upgrade, or upgrade this program")


def shards(server: Server) -> Iterator[Finding]:
    """The server is ready, and all shards read and write."""
    for state, numbers in server.ready.shards.items():
        for number in numbers:
            mend = STATES.get(state, "wait; if it stays so, the server's log says why")
            yield Finding(f"shard {number} is {state}", mend)
    if not server.ready.is_ready and not server.ready.shards:
        yield Finding(server.ready.says, "wait; if it stays so, the server's log says why")


def keys(server: Server) -> Iterator[Finding]:
    """A server that others can reach asks for keys."""
    url = server.client.target.url
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return
    with suppress(Refused), Topics(url, key="none", retry=server.client.retry) as stranger:
        stranger.call(calls.list_topics("", None))
        what = f"everyone who reaches {host} may read, write and delete everything"
        yield Finding(what, "set TOPICS_API_KEYS_FILE (topics keys hash), or TOPICS_HOST=127.0.0.1")


def fsync(server: Server) -> Iterator[Finding]:
    """The disk is fast enough."""
    took_ms = sync_ms(server.metrics, None, 0.99) or 0.0
    if took_ms > SYNC_MAX_MS:
        mend = "move the data directory to a local SSD, or find what else writes to this disk"
        yield Finding(f"one fsync in a hundred takes longer than {duration(took_ms)}", mend)


def disk(server: Server) -> Iterator[Finding]:
    """The server's disk has room."""
    yield from _room(server.metrics["topics_disk_free_bytes"])


def _room(free: int) -> Iterator[Finding]:
    if 0 < free < FREE_BYTES:  # 0: no shard is there to tell
        mend = "delete records or topics, set ttl_ms or cap_bytes, or make the disk larger"
        yield Finding(f"only {size(free)} are free where the data is", mend)


USED: Final = {"max_total_bytes": "bytes_live", "max_connections": "connections_open"}
LIMITS: Final = {"max_connections": "the limit of open files (ulimit -n)"}


def caps(server: Server) -> Iterator[Finding]:
    """No cap is near."""
    for limit, most in by(server.metrics, "topics_limit_max", "limit").items():
        name = USED.get(limit, limit.removeprefix("max_"))
        used = server.metrics.get(f"topics_{name}", 0)  # of one key nothing is told
        if most and used >= NEAR * most:
            setting = LIMITS.get(limit, f"TOPICS_{limit.upper()}")
            mend = f"remove or close what nobody needs, or raise {setting}"
            yield Finding(f"{used} of {most} ({limit}) are in use", mend)


def dead_letters(server: Server) -> Iterator[Finding]:
    """No dead letters wait."""
    queues = map(server.client.topic, by(server.metrics, "topics_topic_queue_ready", "topic"))
    named: dict[str, list[str]] = {}
    for queue in queues:
        with suppress(NotFound, Unavailable):
            if dead := queue.state().config["dead_letter"]:
                named.setdefault(dead, []).append(queue.name)
    for dead, names in named.items():
        with suppress(NotFound, Unavailable):
            if count := server.client.topic(dead).state().count:
                what = f"{dead} holds {count} dead letters of {', '.join(names)}"
                mend = f"topics read {dead} shows why (meta), topics queue redrive {dead} repeats"
                yield Finding(what, mend)


def lag(server: Server) -> Iterator[Finding]:
    """Routers keep up."""
    behind = by(server.metrics, "topics_router_lag_records", "router")
    for name, lag_ms in by(server.metrics, "topics_router_lag_ms", "router").items():
        if lag_ms > LAG_MAX_MS:
            what = f"router {name} is {duration(lag_ms)} behind ({behind[name]} records)"
            yield Finding(what, "its dest is full (cap with discard: reject), or its shard is down")


def clock(server: Server) -> Iterator[Finding]:
    """No records are ahead of the clock."""
    if count := server.metrics.get("topics_topics_ahead_of_clock", 0):
        ahead = (time.time() * 1000) + AHEAD_MS
        found = (each.name for each in server.client.topics() if (each.last_write_ts or 0) > ahead)
        names = ", ".join([*islice(found, NAMES_MAX)])
        what = f"{count} topics have records from the future, which no ttl_ms removes: {names}"
        mend = "set the clock right, then topics export, rm and import (runbook.md#clockahead)"
        yield Finding(what, mend)


# Of the machine that has the data directory

VOLATILE: Final = ("tmpfs", "ramfs")
REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "glusterfs")


def free_space(directory: Path) -> Iterator[Finding]:
    """The disk of the data directory has room."""
    yield from _room(shutil.disk_usage(directory).free)


def file_system(directory: Path, mounts: str = "/proc/mounts") -> Iterator[Finding]:
    """The data directory is on a disk of this machine."""
    lines = [line.split() for line in Path(mounts).read_text().splitlines()]
    kinds = {Path(place): kind for _, place, kind, *_ in lines}  # of two on one place the last
    kind = next(kinds[each] for each in (directory.resolve() / "_").parents if each in kinds)
    if kind in VOLATILE:
        yield Finding(f"{directory} is in memory ({kind})", "choose a directory that is on a disk")
    if kind in REMOTE:
        what = f"{directory} is on a file system of the network ({kind})"
        yield Finding(what, "use a local disk: locks and fsync are not to be trusted there")


def permissions(directory: Path) -> Iterator[Finding]:
    """The data directory is the server's alone."""
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        what = f"{directory} is not this user's, but of the user {directory.stat().st_uid}"
        yield Finding(what, "start the server as its owner, or chown -R")
    if others := directory.stat().st_mode & 0o077:
        what = f"others may use {directory} (mode {others:03o})"
        yield Finding(what, f"chmod 700 {directory}")


OF_SERVER: Final = (version, shards, keys, fsync, disk, caps, dead_letters, lag, clock)
OF_MACHINE: Final = (free_space, file_system, permissions)


@command("doctor")
@click.option(
    "--data-dir", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR",
    help="The data directory on this machine (TOPICS_DATA_DIR, ./topics-data if it is there).",
)  # fmt: skip
@pass_shell
def doctor(shell: Shell, data_dir: Path | None) -> ExitCode:
    """Look for what is wrong, and say what mends it.

    Nothing is changed. Exit 0: all is well; 1: something is wrong, also when no server answers.
    """
    is_well = True
    for name, says, findings in _results(shell, data_dir):
        is_well = is_well and not findings
        if shell.is_json:
            for each in findings or [Finding(says, "")]:
                shell.emit({"check": name, "is_well": not findings, **each._asdict()})
        elif findings:
            click.echo("\n".join(f"WRONG  {what}\n       Mend: {mend}" for what, mend in findings))
        else:
            click.echo(f"ok     {says}")
    return ExitCode.DONE if is_well else ExitCode.FAILED


def _results(shell: Shell, data_dir: Path | None) -> Iterator[tuple[str, str, list[Finding]]]:
    """Each check: its name, what is so when all is well, and what is not."""
    with shell.client() as client:
        try:
            server = Server(client, client.call(calls.metrics()), readiness(client))
        except TopicsError as failure:
            is_key = isinstance(failure, Refused)
            yield "server", "", [Finding(failure.message, KEY_MEND if is_key else SERVER_MEND)]
        else:
            yield "server", f"{client.target.url} answers.", []
            for check in OF_SERVER:
                yield check.__name__, check.__doc__ or "", [*check(server)]
    usual = Path(os.environ.get("TOPICS_DATA_DIR") or Settings().data_dir)
    directory = data_dir or (usual if usual.is_dir() else None)
    if directory is None:
        shell.say("no data directory is here: --data-dir names it, where the server runs")
        return
    for local in OF_MACHINE:
        yield local.__name__, local.__doc__ or "", [*local(directory)]
