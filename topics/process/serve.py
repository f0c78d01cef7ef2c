"""The command ``serve``: check the data directory, listen, make what the processes share, and be
their parent.

Everything that can be refused is refused before the first fork, with one log line and an exit code
(`topics.errors.ExitCode`).
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog
from setproctitle import setproctitle

from topics.actors.link.board import KEY_SLOTS, Board
from topics.actors.link.process_id import front_id, shard_id
from topics.config import Settings
from topics.engine.access import Access
from topics.errors import ExitCode
from topics.process import preload
from topics.process.boot import Boot
from topics.process.children import forbid_dumps, raise_file_limit
from topics.process.family import Shared, Workers
from topics.process.key_reload import KeyReload
from topics.process.listeners import listen, url_of
from topics.process.notify import Notifier
from topics.process.supervisor import Supervisor
from topics.process.topology import (
    LinkRule,
    Links,
    descriptors_of,
    fronts_with_shards,
    shards_with_shards,
)
from topics.storage.data_dir import DataDirectory, DataDirectoryDamaged, DataDirectoryInUse

MakeWorkers = Callable[[Settings, Shared], Workers]
# Of the supervisor, besides doorbells and listeners: log, lock, systemd, and some to spare.
OTHER_FILES = 64

log = structlog.get_logger()


def real_workers(settings: Settings, shared: Shared) -> Workers:
    """What is not loaded before the fork, a worker imports in the child."""
    board, links, listeners = shared.board, shared.links, shared.listeners

    def front(index: int) -> None:
        from topics.process import front

        own = links.of(front_id(index))
        front.main(settings, shared.keys, board, own, index, listeners[index])

    def shard(index: int) -> None:
        from topics.process import shard_writer

        shard_writer.main(settings, board, links.of(shard_id(index)), index)

    return Workers(front, shard, preload.load_shared, preload.load_shard)


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
    try:
        directory = DataDirectory(settings.data_dir, shards=settings.shards)
        listeners = listen(settings.host, settings.port, settings.fronts)
    except DataDirectoryDamaged as error:
        log.critical("data directory damaged", reason=str(error))
        return ExitCode.DAMAGED
    except DataDirectoryInUse as error:
        log.critical("start failed", reason=str(error))
        return ExitCode.FAILED
    except OSError as error:
        where = f"host {settings.host}, port {settings.port}, data {settings.data_dir}"
        log.critical("start failed", reason=f"{error} ({where})")
        return ExitCode.FAILED
    settings = _with_stored_shards(settings, directory.shards)
    soft_limit, file_limit = raise_file_limit()
    log.info("file limit set", soft_limit=file_limit, was=soft_limit)
    board, rules = (
        _make_board(settings, len(start.access.principals)),
        [fronts_with_shards(settings), shards_with_shards()],
    )
    if (refusal := _too_few_files(board, rules, file_limit)) is not None:
        log.critical("start failed", reason=refusal)
        return ExitCode.FAILED
    _announce(settings, start.access, listeners)
    keys = KeyReload(board, start.sources, start.access)
    shared = Shared(board, Links(board, rules), listeners, notifier, keys.table)
    return Supervisor(settings, shared, make_workers(settings, shared), keys).run()


def _with_stored_shards(settings: Settings, stored: int) -> Settings:
    if stored == settings.shards:
        return settings
    log.warning("stored shard count kept", shards=stored, asked_for=settings.shards)
    return replace(settings, shards=stored)


def _announce(settings: Settings, access: Access, listeners: Sequence[socket.socket]) -> None:
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
    log.info(
        "listening",
        url=url_of(listeners[0]),
        data_dir=str(settings.data_dir.absolute()),
        auth="keys" if access.enabled else "none",
        keys=len(access.principals),
        shards=settings.shards,
        fronts=settings.fronts,
    )


def _make_board(settings: Settings, keys: int) -> Board:
    """The board, with room for all keys to be replaced."""
    board = Board.create(settings.shards, settings.fronts, max(KEY_SLOTS, 2 * keys))
    board.started_monotonic_ms = time.monotonic_ns() // 1_000_000
    return board


def _too_few_files(board: Board, rules: Sequence[LinkRule], limit: int) -> str | None:
    """Why the limit of open files does not do for these links, if so."""
    needed = descriptors_of(board, rules) + board.fronts + OTHER_FILES
    if limit == resource.RLIM_INFINITY or limit >= needed:
        return None
    return (
        f"{board.shards} shards need a limit of {needed} open files, and it is {limit}:"
        " raise the hard limit (ulimit -Hn), or take fewer shards for a new data directory"
    )
