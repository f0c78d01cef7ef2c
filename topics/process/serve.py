"""The command ``serve``: starts a server and runs its supervisor until the server stops.

It opens the data directory, creates the listening socket and the resources that the processes
share, and then becomes the parent of all processes. All conditions that prevent startup are checked
before the first fork. A failed check causes one log line and an exit code
(`topics.errors.ExitCode`). The parent imports the modules that several children use before it forks
them:

    parent   imports shared modules ─ fork front ─ imports modules of shards ─ fork shards ─ waits
    front                                └─ imports its own ─ serves
    shards                                                                       └─ recover, serve

So on two cores the modules of the front and the modules of the shards are imported in parallel. The
parent only imports the shared modules. It starts no thread and no event loop and calls no function
of these modules. It never imports the modules of the front, so it contains no code that parses data
from clients. A shared module must not read a clock or generate a random number during its import,
because all children would get the same value.
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
from topics.imports import gc_frozen, lazily
from topics.process.boot import Boot
from topics.process.children import forbid_dumps, raise_file_limit
from topics.process.family import ChildMains, Links, Shared, descriptors_of
from topics.process.keys import KeyReload
from topics.process.notify import Notifier
from topics.process.supervisor import Supervisor
from topics.storage.data_dir import FOLDERS, DataDirectory, DataDirectoryDamaged, DataDirectoryInUse
from topics.storage.fence import Fenced, check_fence

MakeMains = Callable[[Settings, Shared], ChildMains]
# The supervisor's descriptors other than doorbells and folders: the listening socket, the log, the
# lock file and systemd's socket, with a reserve.
OTHER_DESCRIPTORS = 65
# The number of connections that can wait while the front restarts. The kernel limits it to
# net.core.somaxconn (4,096 by default).
BACKLOG = 65_535

log = structlog.get_logger()


def server_mains(settings: Settings, shared: Shared) -> ChildMains:
    """Return the main functions of the front and the shards.

    Modules that were not loaded before the fork are imported in the child.
    """
    board, links = shared.board, shared.links

    def front() -> None:
        with gc_frozen():
            from topics.process import front

        front.main(settings, shared.keys, board, links.of(FRONT), shared.listener)

    def shard(index: int) -> None:
        from topics.process import shard_writer

        folders = shared.folders[index]
        shard_writer.main(settings, folders, board, links.of(shard_id(index)), index)

    return ChildMains(front, shard, load_shared, load_shard)


def load_shared() -> None:
    """Import the modules that the front and the shards share."""
    # Trio imports idna and ssl, but the server does not use them.
    with gc_frozen(), lazily("idna", "ssl"):
        import topics.actors.rpc.message_router
        import topics.formats.api.answers
        import topics.process.measure  # noqa: F401


def load_shard() -> None:
    """Import the modules of the shards."""
    load_shared()
    with gc_frozen():
        import topics.process.shard_writer  # noqa: F401


def serve(
    start: Boot,
    notifier: Notifier,
    make_mains: MakeMains = server_mains,
) -> ExitCode:
    """Run a server until it stops, and return the exit code of the process."""
    # If keys are in memory, no server process may write a core dump.
    if start.access.enabled:
        forbid_dumps()
    setproctitle("topics: supervisor")
    settings = start.settings
    # Raise the limit first, because opening the data directory takes many descriptors.
    soft_limit, file_limit = raise_file_limit()
    # The directory is locked before the port is opened, so that a second server with the same
    # directory fails early.
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
        log.critical("start failed", reason=_describe_error(error, settings))
        return ExitCode.FAILED
    # A fenced server is a former source whose standby has been promoted. It must not start.
    try:
        if settings.fence is not None:
            check_fence(settings.fence, settings.data_dir, directory.promotions)
    except (Fenced, OSError) as error:
        log.critical("start failed", reason=str(error))
        return ExitCode.FAILED
    # The stored number of shards takes precedence, because it determines the shard of each topic.
    settings = _with_stored_shards(settings, directory.shards)
    log.info("file limit set", soft_limit=file_limit, previous_limit=soft_limit)
    if (refusal := _file_limit_error(settings.shards, file_limit)) is not None:
        log.critical("start failed", reason=refusal)
        return ExitCode.FAILED
    _announce(settings, start.access, listener)
    # All shared memory is created before the first fork, and inherited by every child.
    board = Board(settings.shards)
    board.started_monotonic_ms = time.monotonic_ns() // 1_000_000
    keys = KeyReload(board, start.sources, start.access)
    links = Links(board, LinkSizes.of(settings))
    shared = Shared(board, links, listener, notifier, keys.table, directory.folders)
    return Supervisor(settings, shared, make_mains(settings, shared), keys).run()


def _describe_error(error: OSError, settings: Settings) -> str:
    """Describe a system error together with the settings that may have caused it."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"Address already in use: another process is listening on port {settings.port} of"
            f" {settings.host}; TOPICS_PORT or --port selects another port"
        )
    return (
        f"{error} (TOPICS_HOST={settings.host}, TOPICS_PORT={settings.port},"
        f" TOPICS_DATA_DIR={settings.data_dir})"
    )


def listen(host: str, port: int) -> socket.socket:
    """Create the listening socket. Port 0 selects a free port.

    The socket is created before the first fork and stays open when a front dies. While the front
    restarts, new connections wait in the backlog and are not refused. Raises ``OSError`` if the
    host is unknown or the address is in use.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # If the name has several addresses, prefer an IPv4 address.
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
    """Return the URL of the listening socket for clients on this machine."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _with_stored_shards(settings: Settings, stored: int) -> Settings:
    if stored == settings.shards:
        return settings
    log.warning("stored shard count kept", shards=stored, configured=settings.shards)
    return replace(settings, shards=stored)


def _announce(settings: Settings, access: Access, listener: socket.socket) -> None:
    """Log warnings about missing keys, and the address of the server.

    Other programs read the field ``url`` of the event ``listening``, so it must not be renamed.
    """
    if not access.enabled:
        log.warning(
            "authentication disabled",
            reason="no API keys are configured",
            effect="every client that reaches this port may read, write and delete all data",
        )
        if not settings.loopback:
            log.warning(
                "port exposed without authentication",
                host=settings.host,
                reason="TOPICS_ALLOW_INSECURE_NO_AUTH is set",
            )
        if "*" in settings.cors_origins:
            log.warning(
                "cross-origin access unrestricted",
                reason="TOPICS_CORS_ORIGINS is * and no API keys are configured",
                effect="every web page may read, write and delete all data through the browser of"
                " a person who reaches this port",
            )
    log.info(
        "listening",
        url=url_of(listener),
        data_dir=str(settings.data_dir.absolute()),
        auth="keys" if access.enabled else "none",
        keys=len(access.principals),
        shards=settings.shards,
    )


def _file_limit_error(shards: int, limit: int) -> str | None:
    """Return an error message if the limit for open files is too low for ``shards`` shards.

    Returns None if it is sufficient.
    """
    # All terms are known at startup. If a server ran out of descriptors later, it would reject
    # clients.
    needed = descriptors_of(shards) + len(FOLDERS) * shards + OTHER_DESCRIPTORS
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return None
    return (
        f"{shards} shards need a limit of {needed} open files, but it is {limit}:"
        " raise the hard limit (ulimit -Hn), or use fewer shards for a new data directory"
    )
