"""Checks that PySpark and a suitable Java are installed, before a JVM starts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from topics.spark.job_errors import JobError

JAVA_MIN = 17
JAVA_S = 20.0
INSTALL_JAVA = "Install it (apt install openjdk-17-jre-headless) or set JAVA_HOME"


def check_spark() -> None:
    """Raise ``JobError`` if PySpark or a suitable Java is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        cure = "pip install 'topics-engine[spark]'"
        raise JobError(f"{' and '.join(missing)} is not installed: {cure}")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        found = "there is no java on PATH"
    else:
        where = f"{java}{' (from JAVA_HOME)' if home else ''}"
        version = _java_version(java)
        if version is not None and version >= JAVA_MIN:
            return
        found = f"{where} " + ("does not run" if version is None else f"is of version {version}")
    raise JobError(f"Spark needs Java {JAVA_MIN} or newer, and {found}. {INSTALL_JAVA}")


def _java_version(java: str) -> int | None:
    """Return 17 for 17.0.15 and 8 for 1.8.0, or None if the version is unknown."""
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
