"""The decision guide: what an arrow says follows from the verdicts, made here by hand, and from nothing else."""

from pathlib import Path

import pytest
import yaml

from fedlib.claims import choosing
from fedlib.claims.choosing import Evidence, Guide, look_up, support
from fedlib.claims.ledger import Claim, Region, Test, load
from fedlib.claims.verdicts import Outcome, Result, Standing, Verdict
from fedlib.spec import InputError
from fedlib.statistics import Estimate

ROOT = Path(__file__).resolve().parents[2]
GAIN = Test(name="gain of accuracy", estimate="seed", reproduced=Region(above=0), because="any")
COST = Test(name="gain of accuracy, less its cost", estimate="seed", reproduced=Region(above=0), because="any")
CLAIM = Claim(key="G1", statement="It helps.", article="x", chapter="small", figure="curves", tests=(GAIN, COST))


def standings(verdict, edition="digits", estimate=None, also=()):
    """The ledger of one claim: the verdict of its first test in one edition, its second not run."""
    estimate = estimate or Estimate(0.1234, 0.1, 0.15, 3)
    results = {}
    for name, one in ((edition, verdict), *also):
        e = None if one is Verdict.NOT_RUN else estimate
        outcomes = (Outcome(GAIN, one, e, (0, 1, 2)), Outcome(COST, Verdict.NOT_RUN))
        results[name] = Result(CLAIM, name, one, outcomes)
    return {"G1": Standing(CLAIM, "S3", results)}


def guide(test="gain of accuracy", refuted=False, when="Labels are skewed", at=None):
    evidence = [{"claim": "G1", "test": test, "refuted": refuted}]
    arrow = {"when": when, "advice": "Do <it> with `mu = 1`.", "evidence": evidence}
    return Guide.from_dict({"questions": [{"key": "labels", "title": "How skewed?", "at": at, "arrows": [arrow]}]})


@pytest.mark.parametrize(
    "verdict, words, refuted",
    [
        (Verdict.REPRODUCED, "Supported by our runs", "Not supported by our runs: they speak against it"),
        (Verdict.PARTLY, "Supported by our runs, in direction if not in size",
         "Not supported by our runs: they speak against it"),
        (Verdict.NOT_REPRODUCED, "Not supported by our runs: they speak against it", "Supported by our runs"),
        (Verdict.INCONCLUSIVE, *["Not supported by our runs: the interval is too wide to say"] * 2),
        (Verdict.NOT_RUN, *["Not supported by our runs: there are none yet"] * 2),
    ],
)  # fmt: skip
def test_the_text_of_an_arrow_follows_the_verdict(verdict, words, refuted, tmp_path):
    for against, expected in ((False, words), (True, refuted)):
        page = choosing.page(guide(refuted=against), standings(verdict), tmp_path)
        assert f'<p class="support">{expected}.</p>' in page
        yes = expected.startswith("Supported")
        assert ('class="arrow supported"' in page) == yes and ('class="arrow unsupported"' in page) != yes
        short = page.split("## What our runs support, in short")[1].split("(labels)=")[0]
        assert ("Do &lt;it&gt;" in short) == yes, "only what is supported is in the summary"
        nothing = page.split("## Where our runs speak against the guides")[1].split("## Not decided")[0]
        assert ("Do &lt;it&gt;" in nothing) == ("speak against" in expected)
        undecided = page.split("## Not decided by our runs")[1]
        assert ("Do &lt;it&gt;" in undecided) == ("too wide" in expected or "none yet" in expected)
        assert ("0.123 [0.1, 0.15], 3 seeds" in page) == (verdict is not Verdict.NOT_RUN)
        assert verdict.value in page and "<code>mu = 1</code>" in page


def test_all_evidence_of_an_arrow_must_support_it():
    known = standings(Verdict.REPRODUCED)
    both = [look_up(Evidence(claim="G1", test=test), known) for test in ("gain of accuracy", "less its cost")]
    assert [f.supports for f in both] == [True, False]
    assert support(both) == "Not supported by our runs: there are none yet"


def test_the_last_edition_that_has_runs_decides_and_the_other_is_shown():
    also = [("cifar10", Verdict.NOT_REPRODUCED)]
    found = look_up(Evidence(claim="G1", test="gain of accuracy"), standings(Verdict.REPRODUCED, also=also))
    assert found.edition == "cifar10" and found.contradicts and [name for name, _ in found.others] == ["digits"]
    assert support([found]) == "Not supported by our runs: they speak against it, though another edition speaks for it"
    refuted = Evidence(claim="G1", test="gain of accuracy", refuted=True)
    found = look_up(refuted, standings(Verdict.REPRODUCED, also=also))
    assert support([found]) == "Supported by our runs; another edition speaks against it"
    also = [("cifar10", Verdict.NOT_RUN)]
    found = look_up(Evidence(claim="G1", test="gain of accuracy"), standings(Verdict.REPRODUCED, also=also))
    assert found.edition == "digits" and found.supports and not found.others


def test_another_edition_speaks_for_an_advice_only_by_all_of_its_evidence(tmp_path):
    tests = ("gain of accuracy", "less its cost")
    evidence = [{"claim": "G1", "test": test} for test in tests]
    arrow = {"when": "Always", "advice": "Do it.", "evidence": evidence}
    both = Guide.from_dict({"questions": [{"key": "labels", "title": "How?", "arrows": [arrow]}]})
    words = "they speak against it, though another edition speaks for it"
    for cost, for_it in ((Verdict.REPRODUCED, True), (Verdict.INCONCLUSIVE, False), (Verdict.NOT_RUN, False)):
        # Here the first test is refuted and the second holds; the other edition has the first reproduced.
        of_edition = {"digits": (Verdict.REPRODUCED, cost), "cifar10": (Verdict.NOT_REPRODUCED, Verdict.REPRODUCED)}
        results = {
            edition: Result(CLAIM, edition, verdicts[0], tuple(
                Outcome(test, v, Estimate(0.1, 0.0, 0.2, 3), (0, 1, 2))
                for test, v in zip((GAIN, COST), verdicts, strict=True)
            ))
            for edition, verdicts in of_edition.items()
        }  # fmt: skip
        known = {"G1": Standing(CLAIM, "S3", results)}
        found = [look_up(Evidence(**one), known) for one in evidence]
        assert (words in support(found)) == for_it and "they speak against it" in support(found)
        page = choosing.page(both, known, tmp_path)
        against = page.split("## Where our runs speak against the guides")[1].split("## Not decided")[0]
        assert "Do it." in against and ("(another edition speaks for it)" in against) == for_it


def test_conditions_have_the_measured_value(tmp_path):
    at = {"claim": "G1", "test": "gain of accuracy"}
    one = guide(when="EMD above {at}", at=at)
    assert "EMD above 0.12 [0.10, 0.15]<" in choosing.page(one, standings(Verdict.REPRODUCED), tmp_path)
    assert "EMD above not measured yet<" in choosing.page(one, standings(Verdict.NOT_RUN), tmp_path)


def test_links_lead_to_the_deciding_figure_where_there_is_one(tmp_path):
    known = standings(Verdict.REPRODUCED)
    assert "small-digits.html" not in choosing.page(guide(), known, tmp_path)
    (tmp_path / "small-digits.ipynb").write_text('{"cells": ["<figure id=\\"curves\\">"]}')
    page = choosing.page(guide(), known, tmp_path)
    assert 'href="small-digits.html#curves"' in page and 'href="scoreboard.html#claim-g1"' in page


@pytest.mark.parametrize(
    "evidence, message",
    [
        ({"claim": "G2", "test": "gain"}, "unknown claim 'G2'; did you mean 'G1'?"),
        ({"claim": "G1", "test": "gain"}, "'gain' is in 2 tests of G1"),
        ({"claim": "G1", "test": "loss"}, "'loss' is in 0 tests of G1"),
    ],
)
def test_evidence_that_is_not_in_the_ledger_is_refused(evidence, message):
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        look_up(Evidence(**evidence), standings(Verdict.REPRODUCED))


def test_a_fault_of_the_file_is_named(tmp_path):
    path = tmp_path / "choosing.yml"
    path.write_text(yaml.safe_dump({"questions": [{"key": "a", "title": "b", "arows": []}]}))
    with pytest.raises(InputError, match="choosing.yml: .*did you mean 'arrows'"):
        choosing.load(path)


def test_every_arrow_of_the_book_rests_on_tests_of_the_ledger():
    claims = [claim for source in load(ROOT / "data" / "claims") for claim in source.claims]
    untested = {claim.key: Standing(claim, "S") for claim in claims}
    questions = choosing.load(ROOT / "data" / "choosing.yml").questions
    assert len({q.key for q in questions}) == len(questions) >= 8
    for question in questions:
        for arrow in question.arrows:
            found = [look_up(e, untested) for e in (*arrow.evidence, *arrow.price)]
            assert all(f.verdict is Verdict.NOT_RUN for f in found)
