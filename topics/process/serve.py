"""The command ``serve``: check the data directory, listen, make what the processes share, and be
their parent.

Everything that can be refused is refused before the first fork, with one log line and an exit code
(`topics.errors.ExitCode`). The parent imports before a fork what its children share:

    parent   imports what all share ─ fork front ─ imports what shards share ─ fork shards ─ waits
    front                                └─ imports its own ─ serves
    shards                                                                       └─ recover, serve

So on two cores the front's modules and those of the shards are imported side by side. The parent
imports modules only: it starts no thread and no event loop, and runs nothing of them. A front's
modules stay out of it, and with them whatever reads bytes of clients. No shared module may read a
clock or draw a number when it is imported: all children would have the same.
"""

from __future__ import annotations

import errno
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import structlog
from setproctitle import setproctitle

from topics.actors.link.board import Board
from topics.actors.link.link_memory import LinkSizes
from topics.actors.link.process_id import FRONT, shard_id
from topics.config import Settings
from topics.engine.access import Access
from topics.errors import ExitCode
from topics.imports import frozen, later
from topics.process.boot import Boot
from topics.process.children import forbid_dumps, raise_file_limit
from topics.process.family import Links, Shared, Workers, descriptors_of
from topics.process.keys import KeyReload
from topics.process.notify import Notifier
from topics.process.supervisor import Supervisor
from topics.storage.data_dir import FOLDERS, DataDirectory, DataDirectoryDamaged, DataDirectoryInUse

MakeWorkers = Callable[[Settings, Shared], Workers]
# Of the supervisor, besides doorbells: listener, log, lock, systemd, and some to spare.
OTHER_FILES = 65
# Connections that wait while the front restarts. The kernel's net.core.somaxconn (4,096 by default)
# bounds it.
BACKLOG = 65_535

log = structlog.get_logger()


def real_workers(settings: Settings, shared: Shared) -> Workers:
    """What is not loaded before the fork, a worker imports in the child."""
    board, links = shared.board, shared.links

    def front() -> None:
        with frozen():
            from topics.process import front

        front.main(settings, shared.keys, board, links.of(FRONT), shared.listener)

    def shard(index: int) -> None:
        from topics.process import shard_writer

        folders = shared.folders[index]
        shard_writer.main(settings, folders, board, links.of(shard_id(index)), index)

    return Workers(front, shard, load_shared, load_shard)


def load_shared() -> None:
    """Import what the front and the shards have in common."""
    with frozen(), later("idna", "ssl"):  # which trio names
        import topics.actors.rpc.message_router
        import topics.formats.api.answers
        import topics.process.measure  # noqa: F401


def load_shard() -> None:
    """Import what shards run."""
    load_shared()
    with frozen():
        import topics.process.shard_writer  # noqa: F401


def serve(
    start: Boot,
    notifier: Notifier,
    make_workers: MakeWorkers = real_workers,
) -> ExitCode:
    """Run a whole server."""
    if start.access.enabled:
        forbid_dumps()
    setproctitle("topics: supervisor")
    settings = start.settings
    soft_limit, file_limit = raise_file_limit()  # before the directory opens descriptors
    try:
        directory = DataDirectory(settings.data_dir, shards=settings.shards)
        listener = listen(settings.host, settings.port)
    except DataDirectoryDamaged as error:
        log.critical("data directory damaged", reason=str(error))
        return ExitCode.DAMAGED
    except DataDirectoryInUse as error:
        log.critical("start failed", reason=str(error))
        return ExitCode.FAILED
    except OSError as error:
        log.critical("start failed", reason=_why_not(error, settings))
        return ExitCode.FAILED
    settings = _with_stored_shards(settings, directory.shards)
    log.info("file limit set", soft_limit=file_limit, was=soft_limit)
    if (refusal := _too_few_files(settings.shards, file_limit)) is not None:
        log.critical("start failed", reason=refusal)
        return ExitCode.FAILED
    _announce(settings, start.access, listener)
    board = Board(settings.shards)
    board.started_monotonic_ms = time.monotonic_ns() // 1_000_000
    keys = KeyReload(board, start.sources, start.access)
    links = Links(board, LinkSizes.of(settings))
    shared = Shared(board, links, listener, notifier, keys.table, directory.folders)
    return Supervisor(settings, shared, make_workers(settings, shared), keys).run()


def _why_not(error: OSError, settings: Settings) -> str:
    """What the system refused, and which settings say it."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"Address already in use: something listens on port {settings.port} of {settings.host};"
            " TOPICS_PORT or --port takes another one"
        )
    return (
        f"{error} (TOPICS_HOST={settings.host}, TOPICS_PORT={settings.port},"
        f" TOPICS_DATA_DIR={settings.data_dir})"
    )


def listen(host: str, port: int) -> socket.socket:
    """The listening socket; port 0 takes a free one. It is made before the first fork and outlives
    every front: while one restarts, clients wait and nobody is refused.

    Raises ``OSError`` when the address is unknown or taken.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Of a name's addresses, the IPv4 one.
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine find it."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _with_stored_shards(settings: Settings, stored: int) -> Settings:
    if stored == settings.shards:
        return settings
    log.warning("stored shard count kept", shards=stored, asked_for=settings.shards)
    return replace(settings, shards=stored)


def _announce(settings: Settings, access: Access, listener: socket.socket) -> None:
    """The first lines of the log; programs read ``url`` from the event ``listening``."""
    if not access.enabled:
        log.warning(
            "NO API KEYS ARE CONFIGURED: everyone who reaches this port may read, write and"
            " delete everything"
        )
        if not settings.loopback:
            log.warning(
                "THE PORT IS OPEN TO THE NETWORK WITHOUT KEYS, because"
                " TOPICS_ALLOW_INSECURE_NO_AUTH is set"
            )
        if "*" in settings.cors_origins:
            log.warning(
                "EVERY WEB PAGE MAY READ, WRITE AND DELETE EVERYTHING through the browsers of"
                " people who reach this port, because TOPICS_CORS_ORIGINS is * without keys"
            )
    log.info(
        "listening",
        url=url_of(listener),
        data_dir=str(settings.data_dir.absolute()),
        auth="keys" if access.enabled else "none",
        keys=len(access.principals),
        shards=settings.shards,
    )


def _too_few_files(shards: int, limit: int) -> str | None:
    """Why the limit of open files does not do for the links of so many shards, if so."""
    needed = descriptors_of(shards) + len(FOLDERS) * shards + OTHER_FILES
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return None
    return (
        f"{shards} shards need a limit of {needed} open files, and it is {limit}:"
        " raise the hard limit (ulimit -Hn), or take fewer shards for a new data directory"
    )
