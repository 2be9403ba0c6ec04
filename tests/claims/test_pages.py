"""What a reader sees of the ledger: the rows, the scoreboard, the data, the terminal."""

import csv
import io
import json
import re

import pytest
import yaml
from typer.testing import CliRunner

from fedlib import claims
from fedlib.claims import pages
from fedlib.claims.verdicts import Verdict, evaluate_all
from fedlib.cli import app
from fedlib.experiment import NUMERICS, Experiment
from fedlib.partitions import FixedEMD
from fedlib.records import Record, Store, provenance
from fedlib.spec import InputError

LEDGER = {
    "key": "S4", "document": "Divergence & sharing", "papers": ["zhao2018"],
    "claims": [
        {
            "key": "W1", "statement": "Accuracy < before.", "article": "82 to 44 %", "paper": "80.83 to 43.85 %",
            "chapter": "small", "figure": "curves",
            "tests": [{
                "name": "fall", "because": "the paper",
                "runs": {
                    "iid": {"partition": {"name": "FixedEMD", "emd": 0}},
                    "one": {"partition": {"name": "FixedEMD", "emd": 1.8}},
                },
                "estimate": "final(iid) - final(one)", "reproduced": {"above": 0.25}, "partly": {"above": 0},
            }],
        },
        {
            "key": "W2", "statement": "Needs a fleet.", "article": "55 %", "chapter": "small",
            "not_testable": {"reason": "No fleet is here.", "needs": "a fleet."},
        },
        {
            "key": "W3", "statement": "An identity.", "article": "exact", "chapter": "small",
            "tests": [
                {"name": "gap", "because": "exact", "estimate": "identity_gap(seed)", "reproduced": {"below": 1e-9}}
            ],
        },
    ],
}  # fmt: skip


@pytest.fixture
def book(checkout):
    (checkout / "data" / "claims" / "S4.yml").write_text(yaml.safe_dump(LEDGER))
    (checkout / "book" / "chapters").mkdir(parents=True)
    return checkout


def train(numerics=NUMERICS) -> list[Record]:
    """Stands in for an execution of the chapter."""
    store, made = Store(), []
    for seed in range(3):
        for emd, accuracy in ((0.0, 0.9), (1.8, 0.5)):
            e = Experiment(rounds=1, seed=seed, partition=FixedEMD(emd=emd))
            series = {"test_accuracy": {"round": [1], "value": [accuracy + 0.01 * seed * (emd > 0)]}}
            made.append(store.put(Record(e, series, provenance(e, "0" * 64, 1.0, 1, 1) | {"numerics": numerics})))
    store.note_chapter("small", "digits", {}, [f"digits/{record.id}" for record in made])
    return made


def test_before_and_after_the_runs(book):
    assert {key: s.headline.verdict for key, s in evaluate_all().items()} == {
        "W1": Verdict.NOT_RUN, "W2": Verdict.NOT_TESTABLE, "W3": Verdict.REPRODUCED,
    }  # fmt: skip
    train()
    standing = evaluate_all()["W1"]
    assert standing.headline.verdict is Verdict.REPRODUCED and standing.headline.edition == "digits"
    assert standing.results["cifar10"].verdict is Verdict.NOT_RUN


def test_json_and_csv_have_the_same_numbers(book):
    records = train()
    pages.publish(book)
    body = json.loads((book / "book" / "chapters" / "claims.json").read_text())
    w1 = next(claim for claim in body["claims"] if claim["id"] == "W1")
    test = w1["editions"]["digits"]["tests"][0]
    assert w1["verdict"] == test["verdict"] == "reproduced" and sorted(test["records"]) == sorted(r.id for r in records)
    assert test["estimate"] == pytest.approx(0.39) and test["low"] < 0.39 < test["high"] and test["seeds"] == [0, 1, 2]
    rows = list(csv.DictReader(io.StringIO((book / "book" / "chapters" / "claims.csv").read_text())))
    row = next(r for r in rows if (r["claim"], r["edition"]) == ("W1", "digits"))
    assert float(row["mean"]) == test["estimate"] and row["claim_verdict"] == "reproduced"


def test_every_verdict_has_a_word_and_a_shape_of_its_own():
    assert len(set(pages.SIGNS.values())) == len(Verdict) == len(pages.SIGNS)
    for verdict in Verdict:
        assert f">{pages.SIGNS[verdict]}</span> {verdict.value}</span>" in pages.badge(verdict)


def test_the_page_links_to_figures_that_are_there(book):
    train()
    pages.publish(book)
    page = book / pages.PAGE
    assert "<a href" not in page.read_text(), "the chapter has no page yet"
    assert "Accuracy &lt; before." in page.read_text() and "No fleet is here." in page.read_text()
    (book / "book" / "chapters" / "small-digits.ipynb").write_text(json.dumps({"out": '<figure id="curves">'}))
    pages.publish(book)
    assert '<a href="small-digits.html#curves">' in page.read_text()
    made = page.stat().st_mtime_ns
    pages.publish(book)
    assert page.stat().st_mtime_ns == made, "unchanged, so that the site need not be built again"


def shown(capsys, *keys, **options) -> str:
    """The HTML that a chapter's cell displays."""
    html = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("IPython.display.display", lambda value: html.append(value.data))
        claims.show(*keys, **options)
    return html[0]


def test_a_chapter_shows_its_own_rows(book, capsys):
    assert "not run yet" in shown(capsys, "W1", records=[])
    records = train()
    own = shown(capsys, "W1", "W2", records=records)
    assert re.findall(r'id="claim-(w\d)"', own) == ["w1", "w2"]
    assert "reproduced</span>" in own and "0.39 [" in own and "3 seeds" in own and 'href="#curves"' in own
    assert shown(capsys, "W1", edition="digits") == shown(capsys, "W1", records=records)
    with pytest.raises(InputError, match="unknown claim 'W9'"):
        claims.show("W9")


def test_stale_records_are_marked(book, capsys):
    assert "stale" not in shown(capsys, "W1", records=train())
    stale = train(NUMERICS - 1)
    assert '<strong class="stale">' in shown(capsys, "W1", records=stale) and stale[0].id in shown(
        capsys, "W1", records=stale
    )
    pages.publish(book)
    assert '<strong class="stale">' in (book / pages.PAGE).read_text()


def command(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["claims", *arguments])
    return result.exit_code, result.output + (result.stderr or "")


def test_in_a_terminal(book):
    records = train()
    code, table = command()
    assert code == 0 and "● reproduced" in table and "1 not testable here" in table and "0.39 [" in table
    code, one = command("W1")
    assert code == 0 and "fedlib run small --edition digits" in one and "final(iid) - final(one)" in one
    assert all(record.id in one for record in records) and "80.83 to 43.85 %" in one
    assert json.loads(command("--json")[1])["claims"][0]["id"] == "W1"
    assert command("W11") == (2, command("W11")[1]) and "did you mean 'W1'" in command("W11")[1]
    (book / "data" / "claims" / "S4.yml").write_text("key: [")
    code, output = command()
    assert code == 2 and "S4.yml is not YAML" in output
