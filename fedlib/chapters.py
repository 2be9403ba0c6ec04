"""The strict chapter runner: what a chapter's parameters are, whether given values fit, and its execution by papermill.

A chapter is ``notebooks/NAME.ipynb``, kept without outputs, with one code cell tagged `parameters`. The cell holds
imports and annotated, commented assignments of plain values, ``rounds: Rounds = 30  # communication rounds``, with the
types of :mod:`fedlib.parameters`. It is read here without being executed. ``notebooks/editions.yml`` gives, for each
chapter, its editions and the parameter values in which each differs from the cell.

Executed notebooks are written by rename, and only when every cell has run. Each carries in its metadata, under
``fedlib``, what it was made from: edition, parameters, a stamp over everything that decides its content, and the
records it used. While all of these are unchanged it is up to date.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import io
import json
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import time
import tokenize
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import yaml
from pydantic import TypeAdapter, ValidationError

from fedlib import parameters as types
from fedlib import paths, progress
from fedlib.spec import InputError, nearest, unknown

if TYPE_CHECKING:
    from nbformat import NotebookNode

EDITIONS = get_args(types.Edition)
"""The editions a chapter can have; the first is the one a command means that names none."""

EXECUTED_BY = (
    "torch", "torchvision", "numpy", "scipy", "pandas", "matplotlib", "seaborn", "mlxtend", "ipykernel", "papermill",
)  # fmt: skip
"""Packages whose version is part of a chapter's stamp."""

GO_ON = "finished runs and rounds are kept, run again to go on"

Parameters = dict[str, Any]


class ChapterError(RuntimeError):
    """A cell of a chapter failed; the message says which, and where the notebook can be looked at."""


@dataclass(frozen=True)
class Parameter:
    """One line of a chapter's parameter cell."""

    name: str
    type: Any
    default: Any
    help: str

    @cached_property
    def _adapter(self) -> TypeAdapter:
        return TypeAdapter(self.type)

    @property
    def allowed(self) -> str:
        """The type and range in words."""
        return in_words(self._adapter.json_schema())

    def check(self, value: Any) -> Any:
        """The value as the chapter gets it; raises :class:`InputError` for one of another type or out of range."""
        try:
            # As JSON, which has one kind of list, and in which nothing but a whole number becomes a float.
            checked = self._adapter.validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            fault = error.errors()[0]
            where = "".join(f"[{part}]" for part in fault["loc"] if isinstance(part, int))
            given = f"parameter {self.name}{where} = {fault['input']!r}"
            if isinstance(fault.get("ctx", {}).get("error"), InputError):
                raise InputError(f"{given}: {fault['ctx']['error']}") from None
            hint = nearest(value, get_args(self.type)) if isinstance(value, str) else ""
            reason = fault["msg"][0].lower() + fault["msg"][1:]
            raise InputError(f"{given}: {reason}{hint} (allowed: {self.allowed})") from None
        except TypeError as error:
            raise InputError(f"parameter {self.name} = {value!r}: {error} (allowed: {self.allowed})") from None
        return self._adapter.dump_python(checked, mode="json")


def in_words(schema: dict[str, Any]) -> str:
    """A JSON schema as a reader would say it."""
    if "anyOf" in schema:
        return " or ".join(map(in_words, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(repr, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type", "value")
    if kind == "array":
        low, high = schema.get("minItems"), schema.get("maxItems")
        size = f" of {low or 0} to {high}" if high is not None else f" of at least {low}" if low else ""
        return f"list{size}: {in_words(schema.get('items', {}))}"
    name = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
    if "minimum" in schema and "maximum" in schema:
        return f"{name[kind]} from {schema['minimum']:,} to {schema['maximum']:,}"
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{words} {schema[bound]:,}" for bound, words in bounds.items() if bound in schema]
    return " ".join([name.get(kind, kind), " and ".join(limits)]).strip()


@dataclass(frozen=True)
class Chapter:
    """A source notebook and what it declares."""

    name: str
    path: Path
    parameters: dict[str, Parameter]

    @property
    def defaults(self) -> Parameters:
        return {name: parameter.default for name, parameter in self.parameters.items()}

    @cached_property
    def title(self) -> str:
        """The notebook's first heading."""
        for cell in _load(self.path).cells:
            for line in cell.source.splitlines():
                if cell.cell_type == "markdown" and line.startswith("# "):
                    return line.removeprefix("# ").strip()
        return self.name

    def check(self, given: Parameters) -> Parameters:
        """The values as the chapter gets them; raises :class:`InputError` at the first that does not fit."""
        for name in given:
            if name not in self.parameters:
                raise _in(self.name, unknown("parameter", name, self.parameters))
        try:
            return {name: self.parameters[name].check(value) for name, value in given.items()}
        except InputError as error:
            raise _in(self.name, error) from None


def _in(chapter: str, error: InputError) -> InputError:
    return InputError(f"chapter {chapter}: {error}")


def names() -> list[str]:
    """The chapters of this checkout."""
    return sorted(path.stem for path in (paths.root() / "notebooks").glob("*.ipynb"))


def read(name: str) -> Chapter:
    """The chapter `name`; raises :class:`InputError` if there is none or its parameter cell is not as it must be."""
    if name not in names():
        raise unknown("chapter", name, names())
    path = paths.root() / "notebooks" / f"{name}.ipynb"
    try:
        notebook = _load(path)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", ())]
        if len(tagged) != 1:
            raise InputError(f"{len(tagged)} cells are tagged 'parameters' (allowed: exactly one)")
        parameters = {p.name: p for p in _declared(tagged[0].source)}
        read_names = {name for cell in cells if cell is not tagged[0] for name in _read_names(cell.source)}
        for unread in sorted(parameters.keys() - read_names):
            hint = difflib.get_close_matches(unread, read_names - parameters.keys(), n=1, cutoff=0.8)
            meant = f"; did a cell mean it by {hint[0]!r}?" if hint else ""
            raise InputError(f"parameter {unread} is declared, but no cell reads it{meant}")
    except InputError as error:
        raise _in(name, error) from None
    return Chapter(name, path, parameters)


def _load(path: Path) -> NotebookNode:
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from None
    except Exception as error:  # nbformat names no common error for what is not a notebook
        raise InputError(f"{path.name} is not a notebook: {str(error).splitlines()[0]}") from None


def _declared(source: str) -> Iterator[Parameter]:
    """What a parameter cell declares."""
    try:
        tree = ast.parse(source)
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except SyntaxError as error:
        raise InputError(f"the parameter cell is not Python: {error.msg}, line {error.lineno}") from None
    comments = {t.start[0]: t.string.lstrip("#: ").strip() for t in tokens if t.type == tokenize.COMMENT}
    namespace = {name: getattr(types, name) for name in dir(types) if not name.startswith("_")}
    for node in tree.body:
        line = source.splitlines()[node.lineno - 1]
        if isinstance(node, ast.Import | ast.ImportFrom):
            continue
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value):
            raise InputError(
                f"the parameter cell has {line!r} (allowed: imports, and 'name: Type = value  # what it is')"
            )
        name, annotation = node.target.id, ast.unparse(node.annotation)
        try:
            kind = eval(annotation, namespace)  # the notebook is code that is about to be executed anyway
        except NameError as error:
            raise InputError(
                f"parameter {name}: fedlib.parameters has no type {error.name!r}{nearest(error.name, namespace)}"
            ) from None
        try:
            default = ast.literal_eval(node.value)
        except ValueError:
            given = ast.unparse(node.value)
            raise InputError(f"parameter {name} = {given} (allowed: a plain value, not an expression)") from None
        if not comments.get(node.end_lineno):
            raise InputError(f"parameter {name} has no comment that says what it is, in {line!r}")
        parameter = Parameter(name, kind, default, comments[node.end_lineno])
        parameter.check(default)
        yield parameter


def _read_names(source: str) -> set[str]:
    """The variables that a cell reads."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError as error:
        raise InputError(f"a cell is not Python: {error.msg}, in {(error.text or '').strip()!r}") from None
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def editions() -> dict[str, dict[str, Parameters]]:
    """Chapter -> edition -> the values that differ from the chapter's cell, all checked."""
    return {name: editions_of(read(name)) for name in names()}


def editions_of(chapter: Chapter) -> dict[str, Parameters]:
    """The editions of one chapter, with the values that differ from its cell."""
    path = paths.root() / "notebooks" / "editions.yml"
    try:
        table = yaml.safe_load(path.read_text()) or {}
    except OSError as error:
        raise InputError(f"cannot read {path.name}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not YAML: {error}") from None
    try:
        if not isinstance(table, dict) or not all(isinstance(entry, dict) for entry in table.values()):
            raise InputError("wrong shape (allowed: chapter, below it edition, below it parameter: value)")
        for other in table:
            if other not in names():
                raise unknown("chapter", str(other), names())
        if chapter.name not in table:
            raise InputError(f"no entry for chapter {chapter.name} (allowed: for example digits: {{}})")
        return {edition: _values(chapter, edition, given) for edition, given in table[chapter.name].items()}
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def _values(chapter: Chapter, edition: str, given: Any) -> Parameters:
    """What an edition sets; a parameter called edition is set to it."""
    if edition not in EDITIONS:
        raise _in(chapter.name, unknown("edition", str(edition), EDITIONS))
    if not isinstance(given, dict):
        raise _in(chapter.name, InputError(f"edition {edition}: {given!r} (allowed: parameter: value, or {{}})"))
    try:
        values = chapter.check(given)
    except InputError as error:
        raise InputError(f"edition {edition}: {error}") from None
    if "edition" in chapter.parameters:
        if values.setdefault("edition", edition) != edition:
            raise InputError(f"edition {edition}: parameter edition = {values['edition']!r} (allowed: {edition!r})")
    return values


def parse(assignment: str) -> tuple[str, Any]:
    """Name and value of ``name=value``. The value is JSON, or YAML with its scalars unquoted: [a, b], .1, word."""
    name, equals, text = assignment.partition("=")
    if not (equals and name.strip().isidentifier()):
        raise InputError(f"-p {assignment!r} (allowed: name=value)")
    try:
        return name.strip(), json.loads(text)
    except ValueError:
        pass
    try:
        return name.strip(), _scalars(yaml.load(text, Loader=yaml.BaseLoader))
    except yaml.YAMLError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"-p {assignment!r}: {reason} (allowed: a number, a word, or a list [a, b])") from None


def _scalars(value: Any) -> Any:
    """Numbers, truth values and null in place of their text. YAML's own rules make text of 1e-3, and false of no."""
    if isinstance(value, list):
        return [_scalars(item) for item in value]
    if isinstance(value, dict):
        return {key: _scalars(item) for key, item in value.items()}
    if value is None:
        return ""
    words = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


# ---------------------------------------------------------------- execution


@dataclass(frozen=True)
class Job:
    """A chapter to execute: everything checked, nothing done yet."""

    chapter: Chapter
    edition: str
    parameters: Parameters
    """All parameters with the values that this execution has."""
    output: Path

    @property
    def title(self) -> str:
        return f"{self.chapter.name} ({self.edition})"

    @property
    def changed(self) -> Parameters:
        """The parameters that have other values than the edition's."""
        own = self.chapter.defaults | editions_of(self.chapter)[self.edition]
        return {name: value for name, value in self.parameters.items() if value != own[name]}

    @property
    def command(self) -> str:
        """What a reader types to make this again."""
        given = [word for name, value in self.changed.items() for word in ("-p", f"{name}={json.dumps(value)}")]
        return shlex.join(["fedlib", "run", self.chapter.name, "--edition", self.edition, *given])

    @cached_property
    def stamp(self) -> str:
        """Hash of what decides the executed notebook, but for the records."""
        body = [hashlib.sha256(self.chapter.path.read_bytes()).hexdigest(), self.edition, self.parameters, _code()]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]

    @property
    def up_to_date(self) -> bool:
        """Whether the output was made from what is there now, records included."""
        try:
            made = json.loads(self.output.read_text())["metadata"]["fedlib"]
            root = paths.root()
            return made["stamp"] == self.stamp and all(
                progress.file_digest(root / used["file"]) == used["sha256"] for used in made["records"].values()
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False


@lru_cache(maxsize=1)
def _code() -> list[str]:
    """Digests of the library and of the ledger of claims, and the versions of the packages."""
    library, claims = Path(__file__).parent, paths.root() / "data" / "claims"
    digest = hashlib.sha256()
    for folder, pattern in ((library, "*.py"), (claims, "*")):
        for path in sorted(p for p in folder.rglob(pattern) if p.is_file()):
            digest.update(f"{path.relative_to(folder)}\0{progress.file_digest(path)}\0".encode())
    versions = [f"{name} {metadata.version(name)}" for name in EXECUTED_BY]
    return [digest.hexdigest(), sys.version, *versions]


def plan(name: str, edition: str = EDITIONS[0], given: Parameters | None = None, output: Path | None = None) -> Job:
    """The job of executing a chapter's edition with some parameters changed; raises :class:`InputError`.

    The output is the page of the book when nothing was changed, else a file of its own, unless it is given.
    """
    chapter = read(name)
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    of_chapter = editions_of(chapter)
    if edition not in of_chapter:
        raise _in(name, unknown("edition", edition, of_chapter))
    own = chapter.defaults | of_chapter[edition]
    values = own | chapter.check(given or {})
    if values.get("edition", edition) != edition:
        other = values["edition"]
        raise _in(name, InputError(f"parameter edition = {other!r} (allowed: --edition {other} instead)"))
    if output is None and values == own:
        output = paths.root() / "book" / "chapters" / f"{name}-{edition}.ipynb"
    elif output is None:
        changed = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        output = paths.root() / "executed" / f"{name}-{edition}-{changed}.ipynb"
    return Job(chapter, edition, values, output.absolute())


def execute(job: Job) -> None:
    """Execute a chapter in a fresh kernel and put the result in place.

    Raises :class:`ChapterError` when a cell fails and :class:`~fedlib.records.StorageError` when the result cannot be
    written; the output that was there before then stays as it was.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    from fedlib import records

    root, start, stamp = paths.root(), time.monotonic(), job.stamp
    # Only what differs from the cell is injected, so that a page without changes shows the cell alone.
    injected = {name: value for name, value in job.parameters.items() if value != job.chapter.defaults[name]}
    # It cannot parse a type with a range and calls such a parameter unknown; all were checked when this was planned.
    logging.getLogger("papermill").setLevel(logging.ERROR)
    with _scratch(job) as scratch, progress.shown(job.title) as tally, _told(job.command):
        try:
            notebook = papermill.execute_notebook(
                job.chapter.path, scratch, injected, cwd=root, kernel_name="python3", progress_bar=False,
                # It warns at each start that it listens on this machine, and shows at length that it was interrupted.
                extra_arguments=["--log-level=CRITICAL"],
            )  # fmt: skip
        except KeyboardInterrupt:
            # The interrupted cell's error reaches papermill too late for it, and asyncio would print that at length.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise
        except PapermillExecutionError as error:
            failed = paths.cache() / "failed" / job.output.name
            failed.parent.mkdir(parents=True, exist_ok=True)
            os.replace(scratch, failed)
            raise ChapterError(_failure(job, error, failed)) from None
        except DeadKernelError:
            raise ChapterError(f"chapter {job.title}: the kernel died, perhaps for want of memory; {GO_ON}") from None
        except OSError as error:
            raise records.StorageError(f"cannot write {scratch}: {error.strerror}; {GO_ON}") from None
    for cell in notebook.cells:  # a page opens with its claim, and its parameters when they are asked for
        if "injected-parameters" in cell.metadata.get("tags", ()):
            cell.metadata["tags"].append("hide-input")
    notebook.metadata.pop("papermill", None)  # paths and times of this machine
    notebook.metadata["fedlib"] = {
        "chapter": job.chapter.name,
        "edition": job.edition,
        "parameters": job.parameters,
        "stamp": stamp,
        "records": {
            run: {"file": os.path.relpath(path, root), "sha256": digest}
            for run, (path, digest) in sorted(tally.used.items())
        },
        "seconds": round(time.monotonic() - start, 1),
    }
    records.write(job.output, nbformat.writes(notebook).encode())
    if not job.changed:
        runs = [f"{path.parent.name}/{path.stem}" for path in (Path(file) for file, _ in tally.used.values())]
        records.Store().note_chapter(job.chapter.name, job.edition, job.parameters, runs)


def execute_all(jobs: Sequence[Job]) -> Iterator[tuple[Job, ChapterError | None]]:
    """Execute chapters, two side by side where there are two cores; each as it has finished, with its error if any.

    A chapter imports, draws and trains single runs with one process, beside which another chapter has use for a core.
    """
    from fedlib import workers

    beside = min(2, workers.cores(), len(jobs))
    if beside < 2:
        for job in jobs:
            yield job, _error_of(job)
        return
    context, inner = multiprocessing.get_context("spawn"), {workers.VARIABLE: str(workers.cores() // beside)}
    waiting, running = list(jobs), {}
    with ProcessPoolExecutor(beside, context, _enter_beside, (inner,)) as pool:

        def start_next() -> None:
            if waiting:
                job = waiting.pop(0)
                running[pool.submit(_execute_beside, job.chapter.name, job.edition, job.changed, job.output)] = job

        try:
            # One is handed out when one has ended: the pool would start what it holds even after an interrupt.
            for _ in range(beside):
                start_next()
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    start_next()
                    yield running.pop(future), future.result()
        except BaseException:
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def _error_of(job: Job) -> ChapterError | None:
    try:
        execute(job)
    except ChapterError as error:
        return error
    return None


def _enter_beside(environment: dict[str, str]) -> None:
    """Leave it to the process that handed out the chapters to say when all end, and end with it."""
    from fedlib import workers

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers.follow_parent()
    os.environ |= environment


def _execute_beside(*planned: Any) -> ChapterError | None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the chapter under way ends as it does for Ctrl-C
    try:
        return _error_of(plan(*planned))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def _told(command: str) -> Iterator[None]:
    """Tell the kernel, for the provenance of figures, with which command a reader makes the chapter again."""
    from fedlib.records import COMMAND

    os.environ[COMMAND] = command
    try:
        yield
    finally:
        del os.environ[COMMAND]


@contextmanager
def _scratch(job: Job) -> Iterator[Path]:
    """Where papermill writes while it executes."""
    from fedlib.records import StorageError

    path = paths.cache() / "executing" / f"{job.output.stem}-{os.getpid()}.ipynb"
    for folder in (path.parent, job.output.parent):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Found out before hours of training, not after.
            probe = folder / f".{path.name}"
            probe.write_bytes(b"\n")
            probe.unlink()
        except OSError as error:
            raise StorageError(f"cannot write to {folder}: {error.strerror}") from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _failure(job: Job, error: Any, failed: Path) -> str:
    """Chapter, cell and error, in one line, and where to look."""
    first = next((line for line in error.source.splitlines() if line.strip()), "")
    cells = enumerate(_load(job.chapter.path).cells, 1)
    number = next((i for i, cell in cells if cell.source == error.source), error.cell_index + 1)
    return (
        f"chapter {job.title}, cell {number} ({first.strip()}): {error.ename}: {error.evalue}\n"
        f"the notebook with the traceback: {os.path.relpath(failed)}"
    )
