"""Preflight: the checks of source, server, key, topic and Java before a job starts a JVM."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from topics.spark.client.errors import RequestError
from topics.spark.client.http import RETRIED_STATUS, Target, TopicsClient, mistake_in
from topics.spark.errors import JobError, WrongPath
from topics.spark.local_csv import GLOB

CONNECT_S = 0.8
READ_S = 5.0
JAVA_MIN = 17
JAVA_S = 20.0
INSTALL_JAVA = "Install it (apt install openjdk-17-jre-headless) or let JAVA_HOME name it"


def check_source(source: str) -> None:
    """Raise `WrongPath` when a plain local path is not there; others are left to Spark."""
    if "://" not in source and not GLOB.search(source) and not Path(source).exists():
        raise WrongPath(f"{source}: no such file or directory")


def check_server(target: Target, topic: str, durability: str | None) -> None:
    """Ask for the topic, and whether this key may do what the job does. Changes nothing.

    It waits for a server that is busy or recovering, as the job does; an address that does not
    answer fails at once. Raises ``RequestError`` or ``JobError``.
    """
    if mistake := mistake_in(target):
        raise JobError(mistake)
    quick = replace(target, retries=0, connect_s=CONNECT_S, read_s=READ_S)
    try:
        state = _ask(quick, topic, durability)
    except RequestError as error:
        if error.status not in RETRIED_STATUS:
            raise
        state = _ask(target, topic, durability)
    if state is not None:
        refuse_queue(topic, state)


def _ask(target: Target, topic: str, durability: str | None) -> dict[str, Any] | None:
    with TopicsClient(target) as client:
        state = client.state(topic)
        client.check_access(
            topic,
            configure=state is None or durability not in (None, state["config"]["durability"]),
        )
        return state


def refuse_queue(topic: str, state: dict[str, Any]) -> None:
    """Raises ``JobError`` for a queue: rows that land there are jobs that somebody works off."""
    if state["config"].get("type", "log") != "log":
        raise JobError(
            f'topic "{topic}" is a {state["config"]["type"]}; rows are loaded into a topic of type'
            " log only"
        )


def check_spark() -> None:
    """Raises ``JobError`` without PySpark or a Java that it can run on."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        cure = "pip install 'topics-engine[spark]'"
        raise JobError(f"{' and '.join(missing)} is not installed: {cure}")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    where = f"{java}{' (from JAVA_HOME)' if home else ''}"
    if java is None:
        raise JobError(
            f"Spark needs Java {JAVA_MIN} or newer, and there is no java on PATH. {INSTALL_JAVA}"
        )
    version = _java_version(java)
    if version is None:
        raise JobError(
            f"Spark needs Java {JAVA_MIN} or newer, and {where} does not run. {INSTALL_JAVA}"
        )
    if version < JAVA_MIN:
        raise JobError(
            f"Spark needs Java {JAVA_MIN} or newer, and {where} is of version {version}."
            f" {INSTALL_JAVA}"
        )


def _java_version(java: str) -> int | None:
    """17 for 17.0.15, 8 for 1.8.0; None when it does not say."""
    try:
        done = subprocess.run(
            [java, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=JAVA_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(found.group(1)) if found and done.returncode == 0 else None
