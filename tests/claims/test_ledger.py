"""The ledger as it stands in data/claims, and what it says to a wrong entry."""

import json
import re
from pathlib import Path

import pytest
import yaml

from fedlib import chapters
from fedlib.claims import load
from fedlib.claims.ledger import Region
from fedlib.spec import InputError

ROOT = Path(__file__).resolve().parents[2]
LEDGER = ROOT / "data" / "claims"


def test_every_claim_is_there_once():
    keys = [claim.key for source in load(LEDGER) for claim in source.claims]
    wanted = [
        f"{letter}{i}" for letter, count in zip("DMGW", (12, 10, 22, 15), strict=True) for i in range(1, count + 1)
    ]
    assert sorted(keys) == sorted(wanted)


def test_every_paper_is_in_the_bibliography():
    known = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "book" / "references.bib").read_text(), re.MULTILINE))
    assert all(set(source.papers) <= known for source in load(LEDGER))


CLAIM = {
    "key": "W1", "statement": "It falls.", "article": "much", "chapter": "weight_divergence",
    "tests": [{
        "name": "fall", "because": "it is said",
        "runs": {
            "iid": {"partition": "Iid"},
            "prox": {"partition": {"name": "FixedEMD", "emd": 1.8}, "methods": ["FedProx"]},
        },
        "estimate": "final(iid) - final(prox)", "reproduced": {"above": 0.1}, "partly": {"above": 0},
    }],
}  # fmt: skip


def ledger(tmp_path, **changes):
    claim = yaml.safe_load(yaml.safe_dump(CLAIM))
    for path, value in changes.items():
        target, *rest = [claim, *path.split("__")]
        for step in rest[:-1]:
            target = target[int(step) if step.isdigit() else step]
        target[rest[-1]] = value
    (tmp_path / "S4.yml").write_text(yaml.safe_dump({"key": "S4", "document": "d", "papers": [], "claims": [claim]}))
    return load(tmp_path)


def test_a_sound_entry_is_read(tmp_path):
    (source,) = ledger(tmp_path)
    assert source.claims[0].tests[0].runs["prox"]["methods"] == ["FedProx"]


@pytest.mark.parametrize("changes, message", [
    ({"artikle": "x"}, "S4.yml, claim W1: Claim has no parameter 'artikle'; did you mean 'article'"),
    ({"tests__0__estimat": "x"}, "Test has no parameter 'estimat'; did you mean 'estimate'"),
    ({"tests__0__runs__iid__datset": "x"}, "run iid: unknown field of Experiment 'datset'; did you mean 'dataset'"),
    ({"tests__0__runs__iid__partition": "Idd"}, "unknown partition 'Idd'; did you mean 'Iid'"),
    ({"tests__0__runs__prox__methods": [{"name": "FedProx", "nu": 1}]},
     "unknown parameter of FedProx 'nu'; did you mean 'mu'"),
    ({"tests__0__runs__prox__methods": [{"name": "DataSharing", "policy": "Alik"}]},
     "unknown policy 'Alik'; did you mean 'Alike'"),
    ({"tests__0__estimate": "finale(iid) - final(prox)"}, "did you mean 'final'"),
    ({"tests__0__differ": ["learning_rate"]}, "unknown field of Experiment 'learning_rate'"),
    ({"tests__0__reproduced": {"above": 1, "below": 1}}, "above < below"),
    ({"tests__0__partly": {"above": 0.5}}, "the latter within the former"),
    ({"tests__0__because": ""}, "because"),
    ({"not_testable": {"reason": "r", "needs": "n"}}, "either tests, or not_testable"),
    ({"tests": []}, "either tests, or not_testable"),
    ({"key": "first"}, "key"),
])  # fmt: skip
def test_a_wrong_entry_is_named(tmp_path, changes, message):
    with pytest.raises(InputError) as error:
        ledger(tmp_path, **changes)
    assert message in str(error.value) and "S4.yml" in str(error.value)


def test_a_claim_stands_once(tmp_path):
    ledger(tmp_path)
    (tmp_path / "S5.yml").write_text((tmp_path / "S4.yml").read_text().replace("key: S4", "key: S5"))
    with pytest.raises(InputError, match="claim W1 stands in S4 and in S5"):
        load(tmp_path)


def test_a_region_without_an_end_is_refused():
    with pytest.raises(InputError, match="one bound"):
        Region()


def test_what_a_committed_edition_stands_on_is_there_and_has_its_parameters():
    for path in (ROOT / "data" / "records").glob("*.json"):
        noted = json.loads(path.read_text())
        assert noted["parameters"] == chapters.plan(noted["chapter"], noted["edition"]).parameters, path.name
        assert all((path.parent / f"{run}.json").exists() for run in noted["runs"] if not run.startswith("digits/"))
