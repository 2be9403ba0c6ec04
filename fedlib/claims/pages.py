"""The ledger as a reader sees it: a chapter's own rows, the scoreboard page, and the data to download.

A verdict is told by its word and by its sign, never by colour alone. On a narrow page each row becomes a card.
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterable
from pathlib import Path

from fedlib.claims.ledger import Claim, Source, load
from fedlib.claims.verdicts import CALCULATION, Outcome, Result, Standing, Verdict, evaluate, evaluate_all
from fedlib.experiment import NUMERICS
from fedlib.records import Record, Store, write
from fedlib.spec import unknown

SIGNS = {
    Verdict.REPRODUCED: "●", Verdict.PARTLY: "◐", Verdict.NOT_REPRODUCED: "✕", Verdict.INCONCLUSIVE: "?",
    Verdict.NOT_TESTABLE: "–", Verdict.NOT_RUN: "…",
}  # fmt: skip
"""The shape that goes with each word."""

PAGE = Path("book") / "chapters" / "scoreboard.md"
"""Where :func:`publish` writes the page, beside the executed chapters; the data lie in the same folder."""


# ---------------------------------------------------------------- one row


def badge(verdict: Verdict) -> str:
    """A verdict as HTML: its sign, which a screen reader leaves out, and its word."""
    kind = verdict.value.replace(" ", "-")
    sign = f'<span aria-hidden="true">{SIGNS[verdict]}</span>'
    return f'<span class="verdict verdict-{kind}">{sign} {verdict.value}</span>'


def number(outcome: Outcome) -> str:
    """A test's estimate with its interval and seeds, in words."""
    e = outcome.estimate
    if e is None:
        return "no runs: " + "; ".join(outcome.missing)
    interval = f" [{e.low:.3g}, {e.high:.3g}]" if e.n > 1 else ", no interval"
    return f"{e.mean:.3g}{interval}, {e.n} {'seed' if e.n == 1 else 'seeds'}"


def numbers(result: Result) -> str:
    """All tests of a result as HTML: name, number, where it should lie, and the verdict where they differ."""
    if result.claim.not_testable:
        gap = result.claim.not_testable
        return f"{html.escape(gap.reason)} It would take {html.escape(gap.needs)}"
    if result.verdict is Verdict.NOT_RUN:
        return "no runs yet"
    items = []
    for outcome in result.outcomes:
        asked = f"reproduced if {outcome.test.reproduced}"
        asked += f", partly if {outcome.test.partly}" if outcome.test.partly else ""
        shown = (
            f"{html.escape(outcome.test.name)}: <strong>{html.escape(number(outcome))}</strong> ({html.escape(asked)})"
        )
        items.append(f"<li>{shown}{' ' + badge(outcome.verdict) if len(result.outcomes) > 1 else ''}</li>")
    stale = f'<li><strong class="stale">stale records: {", ".join(result.stale)}</strong></li>' if result.stale else ""
    return f"<ul>{''.join(items)}{stale}</ul>"


def said(claim: Claim) -> str:
    """The source's figure, and the paper's where it has its own."""
    paper = f"<br><em>paper:</em> {html.escape(claim.paper)}" if claim.paper else ""
    return f"{html.escape(claim.article)}{paper}"


def rows(cells: Iterable[tuple[str, str, str, str, str]], caption: str) -> str:
    """A table of claims as HTML; each row has key, statement, source's figure, ours, verdict (all but the key HTML)."""
    names = ("claim", "the source says", "here", "verdict")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = "".join(
        f'<tr id="claim-{key.lower()}"><th scope="row"><span class="claim-key">{key}</span> {statement}</th>'
        + "".join(f'<td data-label="{n}">{cell}</td>' for n, cell in zip(names[1:], rest, strict=True)) + "</tr>"
        for key, statement, *rest in cells
    )  # fmt: skip
    return (
        f'<table class="claims"><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def show(
    *keys: str, records: Iterable[Record] | None = None, edition: str | None = None, linked: bool = True
) -> None:
    """Display some claims with their verdicts: ``show("W1", "W2", records=stored.values())`` in a chapter.

    `records` are the runs to judge by, those of this execution, whatever its parameters; without them, those that the
    book's execution of the claim's chapter in `edition` stands on. `linked` is for the claims' own chapter, which has
    their figures. Raises :class:`~fedlib.spec.InputError` for a claim
    that is not in the ledger.
    """
    from IPython.display import HTML, display

    known = {claim.key: claim for source in load() for claim in source.claims}
    store, cells = Store(), []
    records = None if records is None else list(records)
    for key in keys:
        if key not in known:
            raise unknown("claim", key, known)
        claim = known[key]
        runs = store.of_chapter(claim.chapter, edition or "digits") if records is None else records
        result = evaluate(claim, runs, edition)
        link = f' <a href="#{claim.figure}">figure</a>' if claim.figure and linked else ""
        cells.append((key, html.escape(claim.statement), said(claim), numbers(result), badge(result.verdict) + link))
    display(HTML(rows(cells, "The claims of this chapter, judged by the runs below")))


# ---------------------------------------------------------------- the scoreboard


def publish(root: Path) -> dict[str, Standing]:
    """Write the scoreboard page and its data (``claims.json``, ``claims.csv``) into the book at `root`.

    Gives the standings that they show.
    """
    ledger, folder = root / "data" / "claims", root / PAGE.parent
    standings = evaluate_all(Store(root / "data" / "records", root / ".fedlib"), ledger)
    texts = {
        "claims.json": as_json(standings),
        "claims.csv": as_csv(standings),
        PAGE.name: page(standings, folder, load(ledger)),
    }
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            write(path, text.encode())
    return standings


def as_json(standings: dict[str, Standing]) -> str:
    """Every claim with the results of every edition, for programs."""
    body = {"numerics": NUMERICS, "claims": [standing.to_dict() for standing in standings.values()]}
    return json.dumps(body, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(standings: dict[str, Standing]) -> str:
    """One line a test and edition."""
    buffer = io.StringIO()
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(
        ["claim", "source", "statement", "article", "paper", "edition", "claim_verdict", "test", "test_verdict", "mean",
         "low", "high", "seeds", "reproduced_if", "partly_if", "records"]
    )  # fmt: skip
    for s in standings.values():
        c = s.claim
        for result in s.results.values():
            start = [c.key, s.source, c.statement, c.article, c.paper, result.edition, result.verdict.value]
            for o in result.outcomes or (None,):
                t = o.to_dict() if o else {}
                names = ("test", "verdict", "estimate", "low", "high")
                table.writerow(
                    start + [t.get(n) for n in names]
                    + [" ".join(map(str, t.get("seeds", ()))), t.get("reproduced_if"), t.get("partly_if")]
                    + [" ".join(t.get("records", ()))]
                )  # fmt: skip
    return buffer.getvalue()


def page(standings: dict[str, Standing], folder: Path, sources: Iterable[Source]) -> str:
    """The scoreboard as MyST Markdown. A link is made only to what the executed chapters in `folder` have."""
    counts = {v: sum(s.headline.verdict is v for s in standings.values()) for v in Verdict}
    tally = "".join(f"<li>{badge(v)} <strong>{n}</strong></li>" for v, n in counts.items())
    parts = [
        "# Scoreboard\n",
        f"All {len(standings)} claims that the four documents make and that a run can test, and what the runs say. "
        "A verdict is that of the cifar10 edition where the claim has one, else of digits. "
        "It is computed from the records each time this page is made; nobody types it. "
        "[How to read a verdict](../reading.md#verdicts).\n",
        f'<ul class="tally">{tally}</ul>\n',
        "Download: {download}`all verdicts with their tests (JSON) <claims.json>`, "
        "{download}`one line a test (CSV) <claims.csv>`.\n",
    ]
    for source in sources:
        own = [s for s in standings.values() if s.source == source.key]
        parts.append(f"## {source.document}\n")
        if source.papers:
            parts.append(f"{{cite:p}}`{','.join(source.papers)}`\n")
        cells = [
            (s.claim.key, html.escape(s.claim.statement), said(s.claim), _here(s), _verdicts(s, folder)) for s in own
        ]
        parts.append(rows(cells, f"{source.key}: {html.escape(source.document)}") + "\n")
    return "\n".join(parts)


def _here(s: Standing) -> str:
    shown = [r for r in s.results.values() if r.verdict is not Verdict.NOT_RUN] or [s.headline]
    if s.claim.not_testable or s.headline.verdict is Verdict.NOT_RUN:
        return numbers(s.headline)
    tests = sum(len(r.outcomes) for r in shown)
    every = "".join(f'<div><span class="edition">{r.edition}</span> {numbers(r)}</div>' for r in reversed(shown))
    if tests == 1:
        return every
    first = next(o for o in s.headline.outcomes if o.estimate)
    brief = f"{html.escape(first.test.name)}: <strong>{html.escape(number(first))}</strong>"
    return f"<div>{brief}</div><details><summary>all {tests} tests, by edition</summary>{every}</details>"


def _verdicts(s: Standing, folder: Path) -> str:
    head = s.headline
    others = [
        r for r in s.results.values() if r is not head and r.verdict not in (Verdict.NOT_RUN, Verdict.NOT_TESTABLE)
    ]
    small = "".join(f'<div class="also">{r.edition}: {badge(r.verdict)}</div>' for r in others)
    links = filter(None, (figure_link(s.claim, edition, folder) for edition in reversed(s.results)))
    return f'{badge(head.verdict)}{small}<div class="figures">{" ".join(links)}</div>'


def figure_link(claim: Claim, edition: str, folder: Path) -> str:
    """A link to the figure that decides a claim, empty where no executed chapter in `folder` has it."""
    notebook = folder / f"{claim.chapter}-{edition}.ipynb"
    if not claim.figure or not notebook.exists():
        return ""
    anchor = f"#{claim.figure}" if f'id=\\"{claim.figure}\\"' in notebook.read_text() else ""
    return f'<a href="{notebook.stem}.html{anchor}">figure, {edition}</a>'


def explain(standing: Standing) -> str:
    """One claim in full, as plain text: the tests, the runs, the numbers, the command that makes them again."""
    c = standing.claim
    lines = [f"{c.key} ({standing.source}): {c.statement}", f"  the source says   {c.article}"]
    lines += [f"  the paper says    {c.paper}"] if c.paper else []
    lines += (
        [f"  figure            {c.figure}, chapter {c.chapter}"] if c.figure else [f"  chapter           {c.chapter}"]
    )
    if c.not_testable:
        return "\n".join(
            [
                *lines,
                f"  {standing.headline.verdict}: {c.not_testable.reason}",
                f"  it would take     {c.not_testable.needs}",
            ]
        )
    for edition, result in standing.results.items():
        headline = ", the headline" if result is standing.headline and result.verdict is not Verdict.NOT_RUN else ""
        lines += ["", f"  {edition}: {SIGNS[result.verdict]} {result.verdict}{headline}"]
        for o in result.outcomes:
            lines += [
                f"    {SIGNS[o.verdict]} {o.test.name}: {number(o)}",
                f"        test      {' '.join(o.test.estimate.split())}",
                f"        asked     reproduced if {o.test.reproduced}"
                + (f", partly if {o.test.partly}" if o.test.partly else "")
                + f": {o.test.because}",
            ]
            if o.values:
                lines.append(
                    f"        by seed   {', '.join(f'{s}: {v:.4g}' for s, v in zip(o.seeds, o.values, strict=True))}"
                )
            if o.records:
                lines.append(f"        runs      {' '.join(r.id + (' (stale)' if r.stale else '') for r in o.records)}")
        if edition != CALCULATION:
            lines.append(f"    again: fedlib run {c.chapter} --edition {edition}")
    return "\n".join(lines)
