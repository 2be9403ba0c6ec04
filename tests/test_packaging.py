"""pyproject.toml, requirements.lock and environment.yml describe one and the same set of packages."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [Requirement(text) for text in PROJECT["dependencies"]]
TEST = [Requirement(text) for text in PROJECT["optional-dependencies"]["test"]]


def lock() -> dict[str, Version]:
    pins = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        line = line.split("#")[0].strip()
        if line:
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", f"{line} does not pin one version"
            pins[canonicalize_name(requirement.name)] = Version(pin.version)
    return pins


def conda() -> tuple[list[str], dict[str, Version], list[str]]:
    """What conda itself installs, what its pip section pins, and the other lines of the pip section."""
    dependencies = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip,) = [entry["pip"] for entry in dependencies if isinstance(entry, dict)]
    pins = {}
    for line in pip:
        if not line.startswith("-"):
            requirement = Requirement(line)
            (pin,) = requirement.specifier
            assert pin.operator == "==", f"{line} does not pin one version"
            pins[canonicalize_name(requirement.name)] = Version(pin.version)
    return [entry for entry in dependencies if isinstance(entry, str)], pins, [x for x in pip if x.startswith("-")]


@pytest.mark.parametrize("requirement", RUNTIME + TEST, ids=lambda requirement: requirement.name)
def test_lock_pins_every_dependency_within_its_bounds(requirement):
    version = lock()[canonicalize_name(requirement.name)]
    assert version in requirement.specifier


def test_environment_has_exactly_the_runtime_dependencies_at_the_locked_versions():
    _, pins, _ = conda()
    pinned = lock()
    assert pins == {name: pinned[name] for name in (canonicalize_name(r.name) for r in RUNTIME)}


def test_environment_installs_the_project_and_a_python_that_it_allows():
    from_conda, _, others = conda()
    assert "--editable ." in others
    (python,) = [entry for entry in from_conda if entry.startswith("python=")]
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(python.removeprefix("python="))


def test_what_decides_numbers_and_pages_is_pinned_in_the_project_itself():
    exact = {r.name: str(r.specifier) for r in RUNTIME if str(r.specifier).startswith("==")}
    assert {"torch", "torchvision", "jupyter-book"} <= exact.keys()
    # jupyter-book 2 is another program: it has no _config.yml and needs the network to build.
    assert lock()["jupyter-book"] < Version("2")


def test_lock_names_no_index_or_path_of_a_machine():
    assert not re.search(r"://|file:|--index|--find-links|@ ", (ROOT / "requirements.lock").read_text())


def test_citation_has_the_version_of_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
