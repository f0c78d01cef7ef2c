"""Check that the versions that are installed for the tests satisfy the requirements of the
project.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
packaging = pytest.importorskip("packaging.requirements", reason="pytest brings it along")


def locked() -> dict[str, str]:
    lines = (ROOT / "deploy" / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_every_dependency_is_locked_to_a_version_that_the_project_permits() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    versions = locked()
    for line in [*project["dependencies"], *(line for extra in extras for line in extra)]:
        requirement = packaging.Requirement(line)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert requirement.specifier.contains(versions[name]), line


def test_the_version_is_defined_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "topics.__version__"}
