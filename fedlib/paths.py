"""Where the project's files lie: the checkout one works in, its committed records, and its local cache."""

from __future__ import annotations

from pathlib import Path


def root() -> Path:
    """The nearest folder from here upwards that is a checkout of the book; outside of one, the working directory."""
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "_config.yml").exists() and (folder / "notebooks").is_dir():
            return folder
    return here


def committed() -> Path:
    """Records that are part of the project."""
    return root() / "data" / "records"


def cache() -> Path:
    """Records, unfinished runs and weights of this machine; may be deleted at any time."""
    return root() / ".fedlib"
