"""The decision guide: what to do for which federation, decided by the ledger's tests (``data/choosing.yml``).

An arrow leads from a condition to an advice, and names the tests that decide it. Advice is supported if all of them
are: a test's claim holds, or holds in direction (reproduced, partly); where `refuted` is set, the advice follows from
the claim being wrong, and needs it not reproduced. In every other case the page says that our runs do not support it,
and why. A test is judged by the last edition that has runs of it (cifar10 before digits). A test is named by its name,
or by a part of it that no other test of its claim has.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import Field

from fedlib.claims.ledger import Claim
from fedlib.claims.pages import badge, figure_link, number
from fedlib.claims.verdicts import CALCULATION, Outcome, Standing, Verdict
from fedlib.records import write
from fedlib.spec import InputError, Spec, unknown

PAGE = Path("book") / "chapters" / "choosing.md"
"""Where :func:`publish` writes the page, beside the scoreboard."""


class Evidence(Spec):
    """A test of the ledger."""

    claim: str
    test: str = Field(min_length=1)
    """Its name, or a part of it."""
    refuted: bool = False
    """Whether the advice needs the claim to be wrong."""


class Arrow(Spec):
    """From a condition to an advice."""

    when: str = Field(min_length=1)
    """The condition; ``{at}`` stands for the question's measured value."""
    advice: str = Field(min_length=1)
    evidence: tuple[Evidence, ...] = Field(min_length=1)
    """All must support it."""
    price: tuple[Evidence, ...] = ()
    """What it costs, shown beside it; decides nothing."""


class Question(Spec):
    """Something to ask of one's federation."""

    key: str = Field(pattern="^[a-z-]+$")
    """Anchor of its section."""
    title: str = Field(min_length=1)
    text: str = ""
    at: Evidence | None = None
    """A measured value on which the conditions depend."""
    arrows: tuple[Arrow, ...] = Field(min_length=1)


class Guide(Spec):
    questions: tuple[Question, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Found:
    """What the runs say to one piece of evidence."""

    evidence: Evidence
    claim: Claim
    edition: str | None
    outcome: Outcome
    others: tuple[tuple[str, Outcome], ...] = ()
    """The same test in the other editions that have runs of it."""

    @property
    def verdict(self) -> Verdict:
        return self.outcome.verdict

    @property
    def supports(self) -> bool:
        """Whether the advice follows."""
        return self._says(self.verdict) is True

    @property
    def contradicts(self) -> bool:
        """Whether the opposite does."""
        return self._says(self.verdict) is False

    @property
    def disputed(self) -> bool:
        """Whether another edition says the opposite."""
        here = self._says(self.verdict)
        return here is not None and any(self._says(outcome.verdict) is (not here) for _, outcome in self.others)

    def supports_in(self, edition: str) -> bool:
        """Whether the advice follows in an edition; not where that has no runs of the test."""
        outcomes = {self.edition: self.outcome, **dict(self.others)}
        return edition in outcomes and self._says(outcomes[edition].verdict) is True

    def _says(self, verdict: Verdict) -> bool | None:
        """Whether a verdict speaks for the advice or against it; None where it does neither."""
        if verdict in (Verdict.REPRODUCED, Verdict.PARTLY):
            return not self.evidence.refuted
        return self.evidence.refuted if verdict is Verdict.NOT_REPRODUCED else None


def load(path: Path) -> Guide:
    """The guide of a file; :class:`InputError` names what is wrong in it."""
    try:
        return Guide.from_dict(yaml.safe_load(path.read_text()))
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not YAML: {error}") from None
    except InputError as error:
        raise InputError(f"{path.name}: {error}") from None


def look_up(evidence: Evidence, standings: Mapping[str, Standing]) -> Found:
    """What the runs say to a piece of evidence; :class:`InputError` for a claim or test that is not in the ledger."""
    if evidence.claim not in standings:
        raise unknown("claim", evidence.claim, standings)
    standing = standings[evidence.claim]
    tests = standing.claim.tests
    fitting = [t for t in tests if t.name == evidence.test] or [t for t in tests if evidence.test in t.name]
    if len(fitting) != 1:
        names = "; ".join(test.name for test in tests)
        found = f"{evidence.test!r} is in {len(fitting)} tests of {evidence.claim}"
        raise InputError(f"{found} (allowed: just one of {names})")
    outcomes = [
        (edition, outcome) for edition, result in standing.results.items() for outcome in result.outcomes
        if outcome.test == fitting[0] and outcome.verdict is not Verdict.NOT_RUN
    ]  # fmt: skip
    if not outcomes:
        return Found(evidence, standing.claim, None, Outcome(fitting[0], Verdict.NOT_RUN))
    return Found(evidence, standing.claim, *outcomes[-1], others=tuple(outcomes[:-1]))


def support(found: Iterable[Found]) -> str:
    """How far the runs support an advice, in words; it begins with "Supported" or with "Not supported"."""
    found = list(found)
    if all(f.supports for f in found):
        part = ", in direction if not in size" if any(f.verdict is Verdict.PARTLY for f in found) else ""
        return f"Supported by our runs{part}" + (
            "; another edition speaks against it" if any(f.disputed for f in found) else ""
        )
    if any(f.contradicts for f in found):
        return "Not supported by our runs: they speak against it" + (
            ", though another edition speaks for it" if elsewhere(found) else ""
        )
    if any(f.verdict is Verdict.NOT_RUN for f in found):
        return "Not supported by our runs: there are none yet"
    return "Not supported by our runs: the interval is too wide to say"


def elsewhere(found: list[Found]) -> bool:
    """Whether another edition supports an advice, by all of its evidence."""
    editions = {edition for f in found for edition, _ in f.others}
    return any(all(f.supports_in(edition) for f in found) for edition in editions)


# ---------------------------------------------------------------- the page


def publish(root: Path, standings: Mapping[str, Standing]) -> None:
    """Write the page into the book at `root`; nothing where it has no guide."""
    source, path = root / "data" / "choosing.yml", root / PAGE
    if source.exists():
        text = page(load(source), standings, path.parent)
        if not path.exists() or path.read_text() != text:
            write(path, text.encode())


HEAD = """# Choosing

What to do with a federation of your own, by questions. Each arrow leads from a condition to an advice, and names the
runs that decide it, with their 95 % interval. **Whether an advice is supported is computed from the records each time
this page is made**; nobody types it. Where our runs do not support what the guides recommend, the arrow stays and says
so. [How to read a verdict](../reading.md#verdicts).

## Measure first

Count how many samples of each class each client holds. Their EMD, 0 to 2, is the strength of the label skew:

```python
from fedlib.measures.emd import emd, mean_emd

# Samples of each class, a row a client.
table = [[500, 20, 0], [10, 0, 480], [0, 490, 15]]
emd(table), mean_emd(table)
```

Train a few rounds, and look at each client: [Watching a run](watching-digits.ipynb).
"""


def page(guide: Guide, standings: Mapping[str, Standing], folder: Path) -> str:
    """The guide as MyST Markdown. A link is made only to what the executed chapters in `folder` have."""
    overview, sections, against, undecided = [], [], [], []
    for question in guide.questions:
        at = _at(question, standings)
        parts, supported = [], []
        for arrow in question.arrows:
            found = [look_up(e, standings) for e in arrow.evidence]
            when = arrow.when.replace("{at}", at)
            parts.append(_arrow(arrow, when, found, standings, folder))
            line = f"<li>{html.escape(when)} <span aria-hidden=\"true\">→</span> {_advice(arrow)}"
            if all(f.supports for f in found):
                supported.append(f"{line}</li>")
            elif any(f.contradicts for f in found):
                also = " (another edition speaks for it)" if elsewhere(found) else ""
                against.append(f"{line}{also}{_evidence([f for f in found if f.contradicts], folder)}</li>")
            else:
                undecided.append(f"{line} ({support(found).split(': ')[1]})</li>")
        inner = f"<ul>{''.join(supported)}</ul>" if supported else " nothing, so far."
        overview.append(f'<li><a href="#{question.key}">{html.escape(question.title)}</a>{inner}</li>')
        sections.append(f"({question.key})=\n## {question.title}\n")
        if question.text:
            sections.append(f"{question.text}\n")
        if question.at:
            sections.append(f"Measured:\n{_evidence([look_up(question.at, standings)], folder)}\n")
        sections.append(f'<div class="arrows">{"".join(parts)}</div>\n')
    return "\n".join([
        HEAD,
        "## What our runs support, in short\n", f'<ol class="guide">{"".join(overview)}</ol>\n', *sections,
        "## Where our runs speak against the guides\n",
        "Advice that the guides give and that our runs speak against: the interval excludes what was promised.\n",
        f"<ul>{''.join(against)}</ul>\n" if against else "None.\n",
        "## Not decided by our runs\n",
        f"<ul>{''.join(undecided)}</ul>\n" if undecided else "None.\n",
        "More seeds decide more of them: `fedlib run CHAPTER -p seeds=10`.\n",
    ])  # fmt: skip


def _at(question: Question, standings: Mapping[str, Standing]) -> str:
    """The value on which a question's conditions depend, in words."""
    e = look_up(question.at, standings).outcome.estimate if question.at else None
    return f"{e.mean:.2f} [{e.low:.2f}, {e.high:.2f}]" if e is not None and e.n > 1 else "not measured yet"


def _advice(arrow: Arrow) -> str:
    """The advice as HTML; backquotes stand for code."""
    parts = html.escape(arrow.advice).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _arrow(
    arrow: Arrow, when: str, found: list[Found], standings: Mapping[str, Standing], folder: Path
) -> str:  # fmt: skip
    yes = all(f.supports for f in found)
    price = [look_up(e, standings) for e in arrow.price]
    return (
        f'<div class="arrow {"supported" if yes else "unsupported"}"><p><strong>If:</strong> {html.escape(when)}</p>'
        f'<p class="advice"><span aria-hidden="true">→</span> {_advice(arrow)}</p>'
        f'<p class="support">{html.escape(support(found))}.</p>{_evidence(found, folder)}'
        + (f"<p>Its price:</p>{_evidence(price, folder)}" if price else "") + "</div>"
    )  # fmt: skip


def _evidence(found: list[Found], folder: Path) -> str:
    items = []
    for f in found:
        claim = f'<a href="scoreboard.html#claim-{f.claim.key.lower()}">{f.claim.key}</a>'
        need = " (needed here: not reproduced)" if f.evidence.refuted else ""
        items.append(f"<li>{claim}, {html.escape(f.outcome.test.name)}: {_said(f.edition, f.outcome)}{need}"
                     f"{_figure(f.claim, f.edition, folder)}"
                     + "".join(f'<div class="also">{_said(*other)}{_figure(f.claim, other[0], folder)}</div>'
                               for other in reversed(f.others)) + "</li>")  # fmt: skip
    return f"<ul>{''.join(items)}</ul>"


def _said(edition: str | None, outcome: Outcome) -> str:
    shown = f"<strong>{html.escape(number(outcome))}</strong>, {edition} " if outcome.estimate else ""
    return f"{shown}{badge(outcome.verdict)}"


def _figure(claim: Claim, edition: str | None, folder: Path) -> str:
    chapter = "digits" if edition == CALCULATION else edition  # a calculation is drawn where the claim's chapter is
    link = figure_link(claim, chapter, folder) if chapter else ""
    return f" {link}" if link else ""
