"""The book's site, built strictly: what is published has no warning in it.

The build is always a whole one, into a folder of its own that replaces the old site only when nothing was wrong.
Sphinx's incremental builds report a warning once and then keep silent about the page, so that a second build of a
broken book would pass; here a failed build fails again. When nothing has changed since the last build that passed,
there is nothing to do.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import nbformat

from fedlib import paths

# What decides the pages, besides the files themselves.
_PACKAGES = ("jupyter-book", "Sphinx", "myst-nb", "sphinx-book-theme", "sphinxcontrib-bibtex", "sphinx-mathjax-offline")
_FINGERPRINT = ".built-from"
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
# Sphinx's own "WARNING:" and "ERROR:", and jupyter-book's complaints about _config.yml, which do not reach Sphinx.
_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL|SEVERE): |^\[?Warning\b|^\[?Error\b|Traceback \(most recent call")


class SiteError(Exception):
    """The book cannot be published as it is; the message names each page, and in a notebook the cell."""


def build(root: Path | None = None) -> Path:
    """Build the site of the book at `root` (the checkout one works in) and return its ``index.html``.

    `root` holds ``_config.yml``, ``_toc.yml`` and the folder ``book`` with the pages, notebooks executed. The
    scoreboard and the decision guide are written first, from ``data`` and the records. The site is ``_build/html``, as
    jupyter-book has it. Raises :class:`SiteError` for any warning, for a notebook cell that was not executed and for
    one that failed; the site that was there before stays. Stale records raise it too, each time, but only once the site
    is built: its pages mark them.
    """
    root = (root or paths.root()).resolve()
    if (root / "data" / "claims").is_dir():
        from fedlib.claims import choosing, pages

        choosing.publish(root, pages.publish(root))
    index = _build(root)
    stale = list(_stale(root))
    if stale:
        raise SiteError(
            f"{index} is built, but it stands on stale records, which an older numerics version of the code made; "
            f"delete them and run the chapters again:\n" + "\n".join(f"  {line}" for line in stale)
        )
    return index


def _build(root: Path) -> Path:
    site = root / "_build" / "html"
    fingerprint = _fingerprint(root)
    marker = site / _FINGERPRINT
    if marker.exists() and marker.read_text() == fingerprint:
        return site / "index.html"

    problems = list(_notebook_problems(root))
    if problems:
        raise SiteError(_listing(problems))

    site.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="building-", dir=site.parent) as scratch:
        # The command line rather than the library: jupyter-book changes sys.path and docutils for the whole process.
        command = ["build", str(root), "--path-output", scratch, "--warningiserror", "--nitpick", "--keep-going"]
        run = subprocess.run(
            [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", *command],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )
        output = _ANSI.sub("", run.stdout)
        problems = [_located(line, root) for line in output.splitlines() if _COMPLAINT.search(line)]
        if run.returncode or problems:
            raise SiteError(_listing(problems) if problems else f"jupyter-book failed:\n{output[-4000:]}")
        built = Path(scratch) / "_build" / "html"
        # jupyter-book's redirect to the first page names no icon; some browsers would ask for one that is not there.
        index = built / "index.html"
        index.write_text(f'<link rel="icon" href="data:," />\n{index.read_text()}')
        (built / _FINGERPRINT).write_text(fingerprint)
        shutil.rmtree(site, ignore_errors=True)
        built.rename(site)
    return site / "index.html"


def _fingerprint(root: Path) -> str:
    """A digest of everything that decides the pages: configuration, pages, this module, the packages."""
    digest = hashlib.sha256()
    sources = [root / "_config.yml", root / "_toc.yml", *sorted(p for p in (root / "book").rglob("*") if p.is_file())]
    for path in [*sources, Path(__file__)]:
        digest.update(f"{path.relative_to(root) if path.is_relative_to(root) else path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    digest.update("\0".join(f"{name} {version(name)}" for name in _PACKAGES).encode())
    return digest.hexdigest()


def _stale(root: Path) -> Iterator[str]:
    """The records of the book's chapters that an older numerics version of the code made."""
    from fedlib.experiment import NUMERICS

    for path in sorted((root / "book").rglob("*.ipynb")):
        used = nbformat.read(path, as_version=4).metadata.get("fedlib", {}).get("records", {})
        for record in used.values():
            file = root / record["file"]
            if file.exists() and json.loads(file.read_text())["provenance"]["numerics"] != NUMERICS:
                yield f"{path.relative_to(root)}: {record['file']}"


def _notebook_problems(root: Path) -> Iterator[str]:
    """Cells that were not executed or that failed. Sphinx would show both without a word."""
    for path in sorted((root / "book").rglob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        for number, cell in enumerate(notebook.cells, start=1):
            if cell.cell_type != "code" or not cell.source.strip():
                continue
            where = f"{path.relative_to(root)}, cell {number}"
            errors = [output for output in cell.outputs if output.output_type == "error"]
            if errors:
                yield f"{where}: {errors[0].ename}: {errors[0].evalue}"
            elif cell.execution_count is None:
                yield f"{where}: was not executed"


def _located(line: str, root: Path) -> str:
    """`line` of Sphinx's output with its path relative to `root` and, in a notebook, the cell in place of the line.

    MyST-NB counts the lines of cell i (from 1) from 10000 * i.
    """
    line = line.strip().replace(f"{root}/", "").replace(".md::", ".md:")
    return re.sub(
        r"(\.ipynb):(\d+):",
        lambda match: f"{match[1]}, cell {int(match[2]) // 10000}:" if int(match[2]) >= 10000 else f"{match[1]}:",
        line,
    )


def _listing(problems: list[str]) -> str:
    problems = list(dict.fromkeys(problems))
    return f"the site has {len(problems)} problem{'s' * (len(problems) > 1)}:\n" + "\n".join(f"  {p}" for p in problems)
