"""Preload: the parent has the modules that its children share, and nothing that runs."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys, threading
from topics.process import serve
before = gc.isenabled(), gc.get_freeze_count()
serve.{load}()
wanted = {{"trio", "topics.actors.rpc.message_router", "topics.process.shard_writer"}}
print(
    sorted(wanted & {{*sys.modules}}),
    [name for name in sys.modules if name.startswith(("topics.front", "topics.process.front"))],
    threading.active_count(),
    before[0] and gc.isenabled(),
    gc.get_freeze_count() > before[1],
)
"""


def loaded(load: str) -> str:
    """What a parent of its own has then: modules, those of a front, threads, the collector."""
    program = PROGRAM.format(load=load)
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_no_process_of_a_server_imports_what_is_for_people() -> None:
    """Client, commands and their libraries: they would cost each process memory and time."""
    program = """
import sys
import topics.process.front, topics.process.serve, topics.process.shard_writer, supervisor
import topics.front.http.cold_lane
print(sorted(name for name in sys.modules if name.split(".")[0] in {"httpx2", "anyio", "rich"}
             or name.startswith(("topics.client", "topics.spark"))))
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_all_share_is_imported_before_the_first_fork() -> None:
    shared = "['topics.actors.rpc.message_router', 'trio']"
    assert loaded("load_shared") == f"{shared} [] 1 True True"


def test_what_shards_run_is_imported_before_their_fork_and_nothing_of_a_front() -> None:
    shared = "['topics.actors.rpc.message_router', 'topics.process.shard_writer', 'trio']"
    assert loaded("load_shard") == f"{shared} [] 1 True True"
