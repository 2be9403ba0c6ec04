"""Golden trajectories: ten rounds of every method on digits give the numbers that are stored in tests/golden/.

A change that alters what a run computes must bump `fedlib.experiment.NUMERICS`; then ``python tests/test_golden.py``
makes all of them anew. Without a bump that command only adds the cases that are missing, and refuses to replace others.
"""

import json
import sys
from pathlib import Path

import pytest
from examples import experiments, play

from fedlib import reference
from fedlib.experiment import NUMERICS, Experiment
from fedlib.methods import published
from fedlib.records import TRACE

GOLDEN = Path(__file__).parent / "golden"
CASES = experiments()
REMAKE = "bump fedlib.experiment.NUMERICS if it is meant to, then run: python tests/test_golden.py"

EARLY, TIGHT, LOOSE = 3, 1e-5, 1e-2
"""Relative tolerance per value: tight in the first rounds, loose after them. On the processor that made them the
numbers are the same to the last bit. AVX2 instead of AVX-512 moves them by about 1e-7 a round, and some methods magnify
that."""


def path(name: str) -> Path:
    return GOLDEN / f"{name.replace(' ', '-').replace(',', '')}.json"


def trajectory(experiment: Experiment, workers: int = 1) -> dict:
    """What is stored: the experiment, the numerics version, and both series to full precision."""
    series = play(experiment, workers).series
    return {"numerics": NUMERICS, "experiment": experiment.to_dict()} | {name: series[name]["value"] for name in TRACE}


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_have_not_changed(name):
    assert path(name).exists(), f"{path(name).name} is missing; run: python tests/test_golden.py"
    golden = json.loads(path(name).read_text())
    assert golden["numerics"] == NUMERICS, f"{name} was made by numerics {golden['numerics']}, this is {NUMERICS}"
    assert golden["experiment"] == CASES[name].to_dict(), (
        f"{name} is another experiment now: delete its file, then remake"
    )
    now = trajectory(CASES[name], workers=2)  # the stored one was made by a single process
    for series in TRACE:
        for r, (value, stored) in enumerate(zip(now[series], golden[series], strict=True), 1):
            close = pytest.approx(stored, rel=TIGHT if r <= EARLY else LOOSE)
            assert value == close, f"{name} computes another {series} in round {r}: {REMAKE}"


def test_every_method_and_part_has_ten_rounds_on_digits():
    assert all(e.rounds == 10 and e.dataset == "digits" for e in CASES.values())
    pinned = {type(method).__name__ for e in CASES.values() for method in e.methods}
    assert pinned == set(published())
    written = json.dumps([e.to_dict() for e in CASES.values()])
    # What condensation gives is kept in the cache, where a change of its numbers would not be seen.
    assert {name for name in reference.parts() if f'"name": "{name}"' not in written} == {"Condensed"}


def test_no_trajectory_without_its_case():
    assert {p.name for p in GOLDEN.glob("*")} == {path(name).name for name in CASES}


def make() -> None:
    """Add what is missing; replace what an older numerics version made; refuse to replace anything else."""
    GOLDEN.mkdir(exist_ok=True)
    refused = []
    for name, experiment in CASES.items():
        now = trajectory(experiment)
        golden = json.loads(path(name).read_text()) if path(name).exists() else None
        if golden is None or golden["numerics"] != NUMERICS:
            path(name).write_text(json.dumps(now, indent=1) + "\n")
            print(f"made {path(name).name}")
        elif now != golden:
            refused.append(name)
    if refused:
        sys.exit(f"not replaced, though these numbers or experiments differ: {', '.join(refused)}; {REMAKE}")


if __name__ == "__main__":
    make()
