"""The command ``fedlib``. Each command imports what it needs itself, so that help and errors come at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from fedlib.records import Record, Store
    from fedlib.watch import Watched

INPUT_ERROR = 2
FAILED = 1
INTERRUPTED = 130


class Commands(typer.core.TyperGroup):
    """The one place where an error becomes a line on stderr and an exit code.

    2: what was asked for cannot be done. 1: it was tried and failed. 130: interrupted. Any other exception is a fault
    of this program and keeps its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _say("interrupted; finished runs and rounds are kept, the same command goes on from there")
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            code = _exit_code(error)
            if code is None:
                raise
            _say(str(error))
            raise typer.Exit(code) from None


def _say(message: str) -> None:
    print(f"fedlib: {message}", file=sys.stderr)


def _exit_code(error: Exception) -> int | None:
    from fedlib.spec import InputError

    if isinstance(error, InputError):
        return INPUT_ERROR
    from fedlib.chapters import ChapterError
    from fedlib.local import Diverged
    from fedlib.records import StorageError
    from fedlib.replay import NotVerified
    from fedlib.site import SiteError

    return FAILED if isinstance(error, ChapterError | Diverged | NotVerified | SiteError | StorageError) else None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    help="When Clients Disagree: execute the chapters, look into their records, build the book.",
)  # fmt: skip


def main() -> None:
    app(prog_name="fedlib")


@app.command()
def run(
    chapter: Annotated[str, typer.Argument(help="Its name; `fedlib chapters` lists them.")] = "",
    all: Annotated[bool, typer.Option("--all", help="All chapters, in both editions unless one is named.")] = False,
    parameter: Annotated[list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="Change a parameter.")] = None,
    edition: Annotated[str, typer.Option(help="digits or cifar10.", show_default="digits")] = "",
    jobs: Annotated[int | None, typer.Option(help="Processes that train; default: one a core.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write the executed notebook.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Execute even what is up to date.")] = False,
) -> None:
    """Execute a chapter and train the runs that it lacks. Interrupted, it goes on where it was."""
    from fedlib import chapters
    from fedlib.spec import InputError, unknown

    if bool(chapter) == all:
        raise InputError(f"name one chapter, or give --all (allowed: {', '.join(chapters.names()) or 'none'})")
    if all and (parameter or output):
        raise InputError("-p and --output go with one chapter, not with --all")
    if jobs is not None:
        if jobs < 1:
            raise InputError(f"--jobs {jobs} (allowed: at least 1)")
        os.environ["FEDLIB_WORKERS"] = str(jobs)  # fedlib.workers.VARIABLE; the chapter's kernel inherits it
    if all:
        if edition and edition not in chapters.EDITIONS:
            raise unknown("edition", edition, chapters.EDITIONS)
        wanted = [(name, own) for name, table in chapters.editions().items() for own in table if edition in ("", own)]
        work = [chapters.plan(*one) for one in wanted]
    else:
        given = [chapters.parse(assignment) for assignment in parameter or ()]
        twice = {name for name, _ in given if [n for n, _ in given].count(name) > 1}
        if twice:
            raise InputError(f"parameter {', '.join(sorted(twice))} is given twice")
        work = [chapters.plan(chapter, edition or chapters.EDITIONS[0], dict(given), output)]

    missing = [job for job in work if force or not job.up_to_date]
    for job in work:
        if job not in missing:
            print(f"{job.title} is up to date: {_relative(job.output)}")
    failures = []
    for job, error in chapters.execute_all(missing):
        if error:
            failures.append(str(error))  # the other chapters do not depend on this one
        else:
            print(f"{job.title} is executed: {_relative(job.output)}", flush=True)
    if failures:
        raise chapters.ChapterError("\nfedlib: ".join(failures))


@app.command("chapters")
def chapters_(name: Annotated[str, typer.Argument(help="Show this chapter's parameters.")] = "") -> None:
    """List the chapters, or what can be changed in one."""
    from fedlib import chapters

    if not name:
        table = Table("chapter", "title", "editions", "parameters", box=None)
        for key, own in chapters.editions().items():
            chapter = chapters.read(key)
            table.add_row(key, escape(chapter.title), ", ".join(own), ", ".join(chapter.parameters))
        _show(table)
        return
    chapter = chapters.read(name)
    own = chapters.editions_of(chapter)
    table = Table("parameter", "allowed", *own, "what it is", title=chapter.title, title_justify="left", box=None)
    for parameter in chapter.parameters.values():
        values = (json.dumps(own[edition].get(parameter.name, parameter.default)) for edition in own)
        table.add_row(*map(escape, (parameter.name, parameter.allowed, *values, parameter.help)))
    _show(table)


@app.command()
def records(
    prefix: Annotated[str, typer.Argument(metavar="ID", help="Show the record whose id begins so.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the stored records, or show one. A damaged one is named, and the exit code is then 1."""
    from fedlib.records import StorageError, Store, parse
    from fedlib.spec import InputError, nearest

    found, damaged = [], []
    for path in (store := Store()).files():
        if not path.stem.startswith(prefix):
            continue
        try:
            found.append(parse(path.read_text(), path))
        except (StorageError, OSError) as error:
            damaged.append(str(error))
    if prefix and not damaged and len(found) != 1:
        ids = [path.stem for path in store.files()]
        hint = "" if found else nearest(prefix, ids)
        raise InputError(f"{len(found)} records have an id that begins with {prefix!r}{hint} (allowed: just one)")
    if prefix and found:
        print(found[0].to_json()) if as_json else _show_record(found[0])
    elif as_json:
        print(json.dumps([_summary(record) for record in found]))
    elif not prefix:
        table = Table(box=None)
        rows = [_summary(record) for record in found]
        for column in rows[0] if rows else ("no records",):
            table.add_column(column, no_wrap=column == "id", overflow="fold")
        for row in rows:
            table.add_row(*(escape(_cell(value)) for value in row.values()))
        _show(table)
    if damaged:
        raise StorageError("\nfedlib: ".join(damaged))


def _summary(record: Record) -> dict[str, Any]:
    from fedlib import paths
    from fedlib.spec import brief

    e = record.experiment
    return {
        "id": record.id,
        "dataset": e.dataset,
        "partition": brief(e.partition),
        "methods": ", ".join(map(brief, e.methods)) or "FedAvg",
        "rounds": e.rounds,
        "seed": e.seed,
        "test accuracy": record.last("test_accuracy"),
        "seconds": record.provenance["seconds"],
        "stale": record.stale,
        "where": "committed" if record.path.is_relative_to(paths.committed()) else "cache",
    }


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _show_record(record: Record) -> None:
    from fedlib.spec import brief

    defaults = {name: field.default for name, field in type(record.experiment).model_fields.items()}
    table = Table("experiment", "", box=None)
    for name in defaults:
        value = getattr(record.experiment, name)
        parts = value if isinstance(value, tuple) else (value,)
        shown = ", ".join(brief(part) if hasattr(part, "family") else str(part) for part in parts)
        table.add_row(name, escape(shown), style=None if value != defaults[name] else "dim")
    _show(table)
    table = Table("provenance", "", box=None)
    for name, value in (record.provenance | {"stale": record.stale, "where": _relative(record.path)}).items():
        shown = ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        table.add_row(name, escape(shown))
    _show(table)
    table = Table("series", "rounds", "first", "last", box=None)
    for name, series in record.series.items():
        numbers = series["value"] if series["value"] and isinstance(series["value"][0], int | float) else None
        ends = (_cell(numbers[0]), _cell(numbers[-1])) if numbers else ("", f"{type(series['value'][-1]).__name__}s")
        table.add_row(name, f"{len(series['round'])}, to {series['round'][-1]}", *ends)
    _show(table)


@app.command()
def methods(
    name: Annotated[str, typer.Argument(help="Show the formula, source and parameters of this one.")] = "",
) -> None:
    """List the federated methods and their parts, or show one."""
    from fedlib import reference
    from fedlib.methods import Method
    from fedlib.spec import unknown

    known = {**dict(sorted(Method.family.items())), **reference.parts()}
    if not name:
        table = Table("method", "what it does", "parameters", box=None)
        for key, part in known.items():
            table.add_row(key, escape(reference.purpose(part)), ", ".join(part.model_fields))
        _show(table)
        return
    if name not in known:
        raise unknown("method", name, known)
    entry = reference.entry(known[name])
    _show(f"[bold]{name}[/bold], {entry.file}\n\n{escape(entry.purpose)}\n\n{escape(entry.formula)}\n")
    if entry.fields:
        table = Table("parameter", "default", "what it is", box=None)
        for field in entry.fields:
            table.add_row(field["field"], escape(field["default"]), escape(field["meaning"]))
        _show(table)
    if entry.chapters:
        _show(f"\nUsed in: {', '.join(entry.chapters)}")


@app.command("claims")
def claims_(
    key: Annotated[str, typer.Argument(metavar="ID", help="Explain this claim, for example W4.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """The claims with their verdicts, computed from the records, or one claim with its tests, runs and numbers."""
    from fedlib import chapters
    from fedlib.claims import pages
    from fedlib.claims.verdicts import Verdict, evaluate_all
    from fedlib.spec import unknown

    standings = evaluate_all()
    if key and key not in standings:
        raise unknown("claim", key, standings)
    if as_json:
        print(pages.as_json({key: standings[key]} if key else standings), end="")
    elif key:
        print(pages.explain(standings[key]))
    else:
        table = Table("claim", "verdict", *chapters.EDITIONS, "statement", box=None)
        for name, standing in standings.items():
            verdict = standing.headline.verdict
            of = [standing.results.get(edition) for edition in chapters.EDITIONS]
            shown = [escape(_first_number(result or standing.headline)) for result in of]
            table.add_row(name, f"{pages.SIGNS[verdict]} {verdict}", *shown, escape(standing.claim.statement))
        _show(table)
        counts = {v: sum(s.headline.verdict is v for s in standings.values()) for v in Verdict}
        print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))


def _first_number(result: Any) -> str:
    """The number of a result's first test, and how many more there are."""
    from fedlib.claims.pages import number

    outcomes = [outcome for outcome in result.outcomes if outcome.estimate is not None]
    if not outcomes:
        return ""
    return number(outcomes[0]) + (f" (+{len(outcomes) - 1})" if len(outcomes) > 1 else "")


@app.command()
def verify(
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Only records whose id begins so.")] = None,
    sample: Annotated[int | None, typer.Option(help="So many, chosen by the commit; default: all.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds; default: all of digits, the first of others.")] = None,
    edition: Annotated[str, typer.Option(help="Only digits or cifar10; default: all.")] = "",
) -> None:
    """Train the first rounds of stored records again and compare. 0: all match; 1: any other, or could not be tried."""
    from fedlib import chapters, records, replay, workers
    from fedlib.spec import InputError, unknown

    for name, given in (("--sample", sample), ("--rounds", rounds)):
        if given is not None and given < 1:
            raise InputError(f"{name} {given} (allowed: at least 1)")
    if edition and edition not in chapters.EDITIONS:
        raise unknown("edition", edition, chapters.EDITIONS)
    files = replay.records_of(records.Store(), edition or None, ids or ())
    if not files:
        raise InputError(f"no records{' of ' + edition if edition else ''} to verify; `fedlib run` makes them")
    chosen = replay.sample(files, sample, records.commit())
    if not chosen:
        raise InputError(f"no data set of these {len(files)} records is here; set FEDLIB_DATA as the README says")
    results = []
    for result in replay.verify(chosen, rounds, workers.cores()):
        results.append(result)
        what = f", {result.rounds} round{'s' * (result.rounds != 1)}" if result.rounds else ""
        why = f": {result.reason}" if result.reason else ""
        print(f"{result.name} {result.dataset}: {result.state}{what}{why}", flush=True)
        for mismatch in result.mismatches:
            print(f"    {mismatch}")
    counts = {state: sum(r.state is state for r in results) for state in replay.State}
    print(", ".join(f"{n} {state}" for state, n in counts.items() if n) + f", of {len(files)} records")
    if counts[replay.State.MATCHES] < len(results):
        named = ", ".join(r.name for r in results if r.state is not replay.State.MATCHES)
        raise replay.NotVerified(f"not verified: {named}")


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A record (id or file) or an executed chapter (.ipynb).")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
) -> None:
    """What differs between two records or two executions of a chapter, and whether their intervals overlap."""
    from fedlib import compare
    from fedlib.records import Store

    store = Store()
    found = compare.compare(compare.find(a, store), compare.find(b, store), store)
    for title, rows in (("setting", found.settings), ("first difference", found.series)):
        if rows:
            table = Table(title, "A", "B", box=None)
            for name, one, other in rows:
                table.add_row(escape(name), escape(str(one)), escape(str(other)))
            _show(table)
    words = {True: "overlap", False: "apart", None: "not known"}
    table = Table("final test accuracy", "A", "B", "95 % intervals", box=None)
    for pair in found.results:
        sides = ("" if e is None else f"{e}, {e.n} seed{'s' * (e.n != 1)}" for e in (pair.a, pair.b))
        table.add_row(escape(pair.setting), *map(escape, sides), words[pair.overlap])
    _show(table)


@app.command()
def show(
    record: Annotated[str, typer.Argument(metavar="RECORD", help="Id or file; without it, the runs under way.")] = "",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with figures.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow a run under way until it ends; Ctrl-C leaves.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Train it again with a trace of its clients first.")] = False,
) -> None:
    """What each client of a run did, with the signs of drift, starvation and forgetting; also while it trains."""
    from fedlib import progress, sweep, watch
    from fedlib.records import Store, write
    from fedlib.spec import InputError

    store = Store()
    if not record:
        if html or live or trace:
            raise InputError("--html, --live and --trace go with a record (allowed: an id or a file)")
        _show(watch.listing(watch.under_way(store)))
        return
    seen = watch.find(record, store)
    if trace:
        traced = watch.with_trace(seen.experiment)
        with progress.shown(f"run {traced.id}"):
            sweep.sweep([traced], store)
        seen = watch.now_of(traced, store)
    if live:
        seen = _follow(seen, store)
    else:
        _show(watch.report(seen))
    if html is not None:
        from fedlib import watch_page

        write(html, watch_page.page(seen).encode())
        print(_relative(html))


def _follow(seen: Watched, store: Store) -> Watched:
    """Show a run again and again until it ends or the reader has seen enough."""
    from rich.live import Live

    from fedlib import watch

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)
    with Live(watch.report(seen), console=console, auto_refresh=False) as screen:
        try:
            for now in watch.follow(seen, store):
                seen = now
                screen.update(watch.report(seen), refresh=True)
        except KeyboardInterrupt:
            pass  # the reader leaves; the run goes on
    return seen


@app.command()
def site() -> None:
    """Build the book's site from the executed chapters."""
    from fedlib import paths
    from fedlib.site import build

    print(build(paths.root()).as_uri())


def _relative(path: Path) -> str:
    return os.path.relpath(path)


def _show(what: Any) -> None:
    # A pipe gets whole lines: a table that folds at 80 columns is of no use to grep.
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(what)
