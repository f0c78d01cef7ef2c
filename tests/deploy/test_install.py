"""The script deploy/install: it installs, upgrades and removes a service, and completes an
interrupted installation. systemd is replaced (`tests.deploy.systemctl`).
"""

from __future__ import annotations

import fcntl
import os
import re
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.api import Api

ROOT = Path(__file__).parents[2]
RUN_S = 300.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# A Python whose virtual environments contain the modules of the tests, so that nothing is
# downloaded.
PYTHON = """#!/bin/sh
case "$*" in
"-m venv "*)
    [ "$KILL_AT" != venv ] || kill -9 $PPID
    "{python}" -m venv --without-pip "$3" && cp "{bin}/tests.pth" "$3"/lib/python*/site-packages ;;
*base_prefix*) echo "${{PREFIX:-/usr}}" ;;
*) exec "{python}" "$@" ;;
esac
"""
STAND_IN = """#!/bin/sh
exec env PYTHONPATH="{root}" "{python}" -m tests.deploy.systemctl "$0" "$@"
"""


def wheel(folder: Path, code: str = "from topics.cli import main") -> Path:
    """Build a wheel whose program ``topics`` runs this code. The package topics itself is the
    checkout's.
    """
    info, path = "topics_engine-9.dist-info", folder / "topics_engine-9-py3-none-any.whl"
    files = {
        "the_program.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: topics-engine\nVersion: 9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntopics = the_program:main\n",
        f"{info}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    with ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


class Machine:
    """The state that deploy/install changes, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.dest = folder / "machine"
        self.opt, self.etc = self.dest / "opt/topics", self.dest / "etc/topics"
        self.keys, self.settings = self.etc / "api-keys", self.etc / "topics.env"
        self.unit = self.dest / "etc/systemd/system/topics.service"
        self.command, self.log = self.dest / "usr/local/bin/topics", self.dest / "run/log"
        self._bin = folder / "bin"
        self._bin.mkdir()
        folders = [*site.getsitepackages(), ROOT]
        (self._bin / "tests.pth").write_text(
            "".join(f"import site; site.addsitedir('{each}')\n" for each in folders)
        )
        known = {"python": sys.executable, "root": ROOT, "bin": self._bin}
        for name, script in {
            "python": PYTHON.format(**known),
            "systemctl": STAND_IN.format(**known),
            "journalctl": STAND_IN.format(**known),
            "id": '#!/bin/sh\necho "${USER_ID:-0}"\n',
            "apt-get": "#!/bin/sh\nexit 1\n",
        }.items():
            (self._bin / name).write_text(script)
            (self._bin / name).chmod(0o755)
        # Bound but not listening, so that no other process can use the server's port.
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def put_settings(self) -> None:
        self.settings.parent.mkdir(parents=True)
        self.settings.write_text(f"TOPICS_PORT={self.port}\nTOPICS_SHARDS=1\n")

    def install(self, *args: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(ROOT / "deploy/install", *args, **env)

    def run(self, *command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        known = {
            "PATH": f"{self._bin}:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.dest),
            "DESTDIR": str(self.dest),
            "PYTHON": str(self._bin / "python"),
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }
        return subprocess.run(
            [self._bin / command[0], *command[1:]],
            env=known | env,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
        )

    def api(self, key: str | None = None) -> Api:
        return Api(("127.0.0.1", self.port), token=key)

    def status(self, key: str | None = None) -> int:
        """Return the status of a request that needs a key."""
        with self.api(key) as api:
            return api.call("GET", "/v0/topics").status

    def append(self, data: int) -> None:
        with self.api(self.key) as api:
            api.call("POST", "/v0/topics/orders", {"records": [{"data": data}]})

    def count(self) -> int:
        with self.api(self.key) as api:
            count: int = api.call("GET", "/v0/topics/orders").json()["count"]
            return count

    @property
    def key(self) -> str:
        return self.keys.read_text().split("\n")[0]

    @property
    def installations(self) -> list[str]:
        return sorted(path.name for path in self.opt.glob("venv-*"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    with machine.socket:
        yield machine
        machine.run("systemctl", "stop")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return wheel(tmp_path / "good")


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return wheel(tmp_path / "broken", "def main(): raise SystemExit('this version is broken')")


@pytest.fixture
def installed(machine: Machine, good: Path) -> Machine:
    machine.put_settings()
    done = machine.install(good)
    assert done.returncode == 0, done.stderr
    return machine


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_first_installation_creates_settings_and_a_key_that_only_root_can_read(
    machine: Machine, good: Path
) -> None:
    override = machine.unit.parent / "topics.service.d/override.conf"
    override.parent.mkdir(parents=True)
    override.write_text(f"[Service]\nEnvironment=TOPICS_PORT={machine.port} TOPICS_SHARDS=1\n")
    done = machine.install(good)
    assert done.returncode == 0, done.stderr
    assert machine.unit.read_text() == (ROOT / "deploy/topics.service").read_text()
    assert (machine.dest / "run/enabled").read_text() == "True"
    assert machine.settings.read_text() == (ROOT / "deploy/topics.env.example").read_text()
    assert mode(machine.settings) == mode(machine.keys) == 0o600
    assert len(machine.key) >= 43, "256 bits"
    assert machine.key not in done.stdout + done.stderr + machine.log.read_text()
    assert (machine.status(machine.key), machine.status()) == (200, 401)
    assert machine.command.resolve().is_file()
    assert [path.name for path in override.parent.iterdir()] == ["override.conf"], "systemd 259"


def test_an_upgrade_keeps_the_data_the_settings_and_the_keys(installed: Machine) -> None:
    key, settings, before = installed.key, installed.settings.read_text(), installed.installations
    installed.append(1)
    done = installed.install(wheel(installed.dest))
    assert done.returncode == 0, done.stderr
    assert (installed.key, installed.settings.read_text()) == (key, settings)
    assert len(installed.installations) == 1
    assert installed.installations != before
    assert str((installed.opt / "bin").readlink()) == f"{installed.installations[0]}/bin"
    assert installed.count() == 1
    url = f"http://127.0.0.1:{installed.port}"
    assert f"ok     {url} responds." in done.stdout, "topics doctor ran"
    assert f"serves {url}. The first line of {installed.keys} is a key" in done.stdout
    shown = re.findall(r"^  sudo (topics .*)$", done.stdout, re.MULTILINE)
    assert len(shown) == 2
    for command in shown:
        typed = installed.run("/bin/sh", "-c", f"{installed.command.parent}/{command}")
        assert typed.returncode == 0, typed.stderr
    assert installed.count() == 2


def test_an_upgrade_that_does_not_become_ready_is_rolled_back(
    installed: Machine, broken: Path
) -> None:
    before = installed.installations
    done = installed.install(broken)
    assert done.returncode == 1
    assert "this version is broken" in done.stderr, "its log is shown"
    assert "The previous version is active again" in done.stderr
    assert installed.installations == before
    assert installed.status(installed.key) == 200


def test_a_first_version_that_does_not_become_ready_is_reported(
    machine: Machine, broken: Path
) -> None:
    machine.put_settings()
    done = machine.install(broken)
    assert done.returncode == 1
    assert "error: topics does not become ready; its log is above." in done.stderr


def test_an_installation_that_was_killed_can_be_repeated(
    installed: Machine, good: Path, broken: Path
) -> None:
    key = installed.key
    for step in ("venv", "daemon-reload", "restart"):
        assert installed.install(broken, KILL_AT=step).returncode == -signal.SIGKILL, step
    assert len(installed.installations) > 1
    done = installed.install(broken)
    assert "The previous version is active again" in done.stderr, "not a killed one"
    assert installed.status(key) == 200
    assert installed.install(good, KILL_AT="after restart").returncode == -signal.SIGKILL
    done = installed.install(good)
    assert done.returncode == 0, done.stderr
    assert installed.status(key) == 200
    assert len(installed.installations) == 1


def test_a_removal_keeps_data_settings_and_keys_and_may_be_repeated(
    machine: Machine, good: Path
) -> None:
    machine.put_settings()
    assert machine.install(good, SYSTEMD_VERSION="260~rc1").returncode == 0
    drop_in = machine.unit.parent / "topics.service.d/refresh-on-reload.conf"
    assert drop_in.exists(), "systemd 260 knows the setting"
    machine.append(1)
    assert machine.install("--remove", KILL_AT="daemon-reload").returncode == -signal.SIGKILL
    for _ in range(2):
        done = machine.install("--remove")
        assert done.returncode == 0, done.stderr
        for kept in (machine.dest / "var/lib/topics", machine.settings, machine.keys):
            assert str(kept) in done.stderr
            assert kept.exists()
        assert not machine.opt.exists()
        assert not machine.unit.exists()
        assert not drop_in.parent.exists()
        assert not machine.command.is_symlink()
    with pytest.raises(ConnectionRefusedError):
        machine.status()
    assert machine.install(good).returncode == 0
    assert machine.count() == 1


def test_a_checkout_is_installed_from_a_copy_of_the_files_of_the_package(machine: Machine) -> None:
    """pip is replaced, because the real one would download the build dependencies of the
    package.
    """
    machine.put_settings()
    pip = machine.dest / "modules/pip.py"
    pip.parent.mkdir()
    pip.write_text(
        "import os, sys\n"
        "print(*sys.argv[1:], *sorted(os.listdir(sys.argv[-1])), sep='\\n', file=sys.stderr)\n"
        "sys.exit('no network')"
    )
    done = machine.install(PYTHONPATH=str(pip.parent))
    assert done.returncode == 1
    *_, constraints, source, one, two, three, says, error = done.stderr.splitlines()
    assert constraints == f"{ROOT}/deploy/requirements.lock"
    assert not Path(source).is_relative_to(ROOT)
    assert (one, two, three) == ("README.md", "pyproject.toml", "topics")
    assert (says, error) == ("no network", "error: pip install failed; nothing has changed")
    assert machine.installations == []


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"USER_ID": "1000"}, "run it as root: sudo deploy/install"),
        ({"PYTHON": "/bin/false"}, "PYTHON is /bin/false, which is not Python 3.11 or newer."),
        ({"PREFIX": "/home/me/.pyenv"}, "which is in a home directory"),
        ({"SYSTEMD_VERSION": ""}, "systemd is not running"),
    ],
)
def test_an_unsuitable_machine_is_refused(machine: Machine, env: dict[str, str], says: str) -> None:
    done = machine.install(**env)
    assert done.returncode == 1
    assert says in done.stderr
    assert machine.installations == []
    assert not machine.etc.exists()


def test_a_folder_of_another_owner_is_not_changed(machine: Machine) -> None:
    (machine.opt / "bin").mkdir(parents=True)
    for args in ([], ["--remove"]):
        done = machine.install(*args)
        assert done.returncode == 1
        assert "was not created by deploy/install" in done.stderr
    assert (machine.opt / "bin").is_dir()


def test_concurrent_installations_are_refused(machine: Machine) -> None:
    machine.opt.mkdir(parents=True)
    with holding(machine.opt):
        done = machine.install()
    assert (done.returncode, machine.installations) == (1, [])
    assert "another deploy/install is running" in done.stderr


def test_an_unknown_argument_or_a_missing_file_is_refused(machine: Machine) -> None:
    for argument, says in (("--purge", "unknown argument --purge"), ("a.whl", "a.whl: No such")):
        done = machine.install(argument)
        assert done.returncode == 2
        assert says in done.stderr
