"""The environment of the other frameworks, apart from fedlib's own: ``.venv-bench``, made by pip."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from benchmarks.turn import ROOT

HOME = ROOT / ".venv-bench"
PYTHON = HOME / "bin" / "python"


def install() -> Path:
    """Its Python, installed at the first use and when what it needs has changed; torch is of fedlib's own version."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["bench"]
    wanted = [f"torch=={metadata.version('torch')}", *extra]
    marker = HOME / ".installed"
    if marker.exists() and marker.read_text() == "\n".join(wanted):
        return PYTHON
    print(f"Installing {', '.join(extra)} into {HOME.name}; this takes some minutes.")
    subprocess.run([sys.executable, "-m", "venv", HOME], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *wanted], check=True)
    marker.write_text("\n".join(wanted))
    return PYTHON


def versions(*names: str) -> dict[str, str]:
    """Versions of distributions in the peers' environment."""
    code = f"from importlib.metadata import version; print(*(version(n) for n in {names!r}))"
    found = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(names, found, strict=True))
