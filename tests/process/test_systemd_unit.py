"""The systemd unit fits the server: hidden paths, timeouts, and the exit codes after which systemd
restarts the server.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.program import Program
from topics.config import Settings
from topics.errors import ExitCode
from topics.process import supervisor
from topics.process.keys import CREDENTIAL

ROOT = Path(__file__).parents[2]
WITHOUT_BOOT_ID = """
from pathlib import Path
from topics.storage import disk
disk.BOOT_ID = Path("/proc/not-there")
from topics.cli import main
raise SystemExit(main(["serve", "--port", "0"]))
"""


def unit(name: str = "topics.service") -> dict[str, str]:
    """Return the settings of a unit. The last one of a repeated setting is used."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


def test_the_unit_exposes_the_boot_id_so_that_a_kill_differs_from_a_power_failure() -> None:
    assert unit().get("ProcSubset", "all") == "all"


@pytest.mark.slow
def test_a_server_without_a_readable_boot_id_warns_about_the_consequence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_BOOT_ID]
    environ = {"TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_SHARDS": "1", "PATH": ""}
    with Program(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        seen: dict[str, dict[str, object]] = {}
        for line in server.stderr:
            seen |= {json.loads(line)["event"]: json.loads(line)}
            if "ready" in seen:
                break
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=20)
    warning = seen["boot id unreadable"]
    assert (warning["level"], warning["path"]) == ("warning", "/proc/not-there")
    assert warning["effect"] == "unsynced records count as lost after each kill"


def test_systemd_does_not_restart_a_server_if_a_restart_cannot_help() -> None:
    useless = (ExitCode.USAGE, ExitCode.DAMAGED)
    assert unit()["RestartPreventExitStatus"].split() == [str(int(code)) for code in useless]


def test_a_reload_of_the_unit_sends_a_hang_up_after_the_credential_was_copied_again() -> None:
    assert unit()["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert unit("refresh-on-reload.conf") == {"RefreshOnReload": "credentials"}
    assert "RefreshOnReload" not in unit(), "systemd before 260 logs a warning"
    assert unit()["LoadCredential"].startswith(f"{CREDENTIAL}:")


def test_the_unit_has_no_privileges_and_sees_only_its_own_data() -> None:
    expected = {
        "DynamicUser": "yes",
        "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
        "AmbientCapabilities": "",
        "PrivateUsers": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "PrivateDevices": "yes",
        "ProtectProc": "invisible",
        "StateDirectory": "topics",
        "StateDirectoryMode": "0700",
        "UMask": "0077",
        "LimitCORE": "0",
        "IPAddressDeny": "any",
        "IPAddressAllow": "localhost",
    }
    assert {name: unit().get(name) for name in expected} == expected
    assert not {"ReadWritePaths", "BindPaths", "User", "SupplementaryGroups"} & unit().keys()


def test_systemd_waits_as_long_as_a_stop_may_take() -> None:
    needed_ms = Settings().drain_ms + supervisor.STOP_EXTENSION_MS
    assert int(unit()["TimeoutStopSec"]) * 1000 >= needed_ms
