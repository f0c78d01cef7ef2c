"""A replacement for systemctl and journalctl, because no systemd runs in the test environment.

It knows one service: the unit below $DESTDIR with its drop-ins. It starts the service as systemd
would: with only the environment of the unit, a copy of its credentials, and a NOTIFY_SOCKET, on
which READY=1 completes the start. A changed unit takes effect only after a daemon-reload. The
sandbox settings of the unit are not applied. KILL_AT names the command at which the caller is
killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

from tests.support.polling import is_readable

DEST: Final = Path(os.environ["DESTDIR"])
RUN: Final = DEST / "run"
UNIT: Final = DEST / "etc/systemd/system/topics.service"
VERSION: Final = "259.9-1"
START_S: Final = 60.0
STOP_S: Final = 20.0


def unit() -> dict[str, list[str]]:
    """Return the settings of the unit as of the last daemon-reload."""
    try:
        loaded: dict[str, list[str]] = json.loads((RUN / "loaded").read_text())
    except FileNotFoundError:
        sys.exit("Unit topics.service could not be found.")
    return loaded


def daemon_reload() -> None:
    found = defaultdict(list)
    for file in [UNIT, *sorted(UNIT.with_suffix(".service.d").glob("*.conf"))]:
        for line in file.read_text().splitlines() if file.exists() else []:
            name, is_setting, value = line.partition("=")
            if is_setting and not line.startswith("#"):
                found[name].append(value)
    (RUN / "loaded").write_text(json.dumps(found))
    if not UNIT.exists():
        (RUN / "loaded").unlink()


def environment(service: dict[str, list[str]], notify: Path) -> dict[str, str]:
    state = DEST / "var/lib"
    (state / "topics").mkdir(0o700, parents=True, exist_ok=True)
    lines = " ".join(service["Environment"]).replace("%S", str(state)).split()
    for named in service["EnvironmentFile"]:
        lines += (DEST / named.lstrip("-/")).read_text().splitlines()
    (credentials := RUN / "credentials").mkdir(0o700, exist_ok=True)
    for each in service["LoadCredential"]:
        name, _, source = each.partition(":")
        shutil.copy(DEST / source.lstrip("/"), credentials / name)
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return given | {
        "PATH": "/usr/bin:/bin",
        "CREDENTIALS_DIRECTORY": str(credentials),
        "NOTIFY_SOCKET": str(notify),
    }


def start() -> None:
    """Start the service. Raise `SystemExit` if it ends before it is ready."""
    service, notify = unit(), RUN / "notify"
    notify.unlink(missing_ok=True)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications,
        (RUN / "log").open("ab") as log,
    ):
        notifications.bind(str(notify))
        program, *args = service["ExecStart"][0].split()
        process = subprocess.Popen(
            [DEST / program.lstrip("/"), *args],
            env=environment(service, notify),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        (RUN / "pid").write_text(str(process.pid))
        until = time.monotonic() + START_S
        while time.monotonic() < until and process.poll() is None:
            if is_readable(notifications.fileno(), 0.05) and b"READY=1" in notifications.recv(4096):
                return
    process.kill()
    sys.exit(f"Job for topics.service failed ({process.wait()}).")


def stop() -> None:
    try:
        handle = os.pidfd_open(int((RUN / "pid").read_text()))
    except (FileNotFoundError, ProcessLookupError):
        return
    signal.pidfd_send_signal(handle, signal.SIGTERM)
    if not is_readable(handle, STOP_S):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    (RUN / "pid").unlink()


def main(program: str, command: str, *args: str) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    if program == "journalctl":
        sys.stdout.write((RUN / "log").read_text())
        return
    kill_at = os.environ.get("KILL_AT", "")
    if command == kill_at:
        os.kill(os.getppid(), signal.SIGKILL)
        return
    if command == "show":
        if not (version := os.environ.get("SYSTEMD_VERSION", VERSION)):
            sys.exit("System has not been booted with systemd as init system (PID 1).")
        print(version)
    elif command == "daemon-reload":
        daemon_reload()
    elif command in ("enable", "disable"):
        unit()
        (RUN / "enabled").write_text(str(command == "enable"))
        if "--now" in args:
            stop()
    elif command == "restart":
        unit()
        stop()
        start()
    elif command == "stop":
        stop()
    elif command != "reset-failed":
        sys.exit(f"Unknown command verb {command}.")
    if kill_at == f"after {command}":
        os.kill(os.getppid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]).name, *sys.argv[2:])
