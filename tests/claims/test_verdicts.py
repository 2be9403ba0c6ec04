"""Verdicts keep the error rates that they promise, and stand on the right runs or on none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.claims.ledger import Claim, NotTestable, Region, Test
from fedlib.claims.verdicts import Verdict, evaluate, judge, outcome, together
from fedlib.experiment import NUMERICS, Experiment
from fedlib.methods import FedAvg, FedProx
from fedlib.partitions import FixedEMD, Iid
from fedlib.records import Record, StorageError, Store, provenance
from fedlib.spec import InputError
from fedlib.statistics import Estimate, estimate

V = Verdict
CLIFF = Test(
    name="fall", because="known truth", estimate="final(iid) - final(skewed)",
    runs={
        "iid": {"partition": {"name": "FixedEMD", "emd": 0}},
        "skewed": {"partition": {"name": "FixedEMD", "emd": 1.8}},
    },
    reproduced=Region(above=0.2), partly=Region(above=0.0),
)  # fmt: skip


def rates(truth: float, deviation: float = 0.03, seeds: int = 5, draws: int = 1000) -> dict[Verdict, float]:
    rng = np.random.default_rng(0)
    verdicts = [judge(CLIFF, estimate(values)) for values in rng.normal(truth, deviation, (draws, seeds))]
    return {verdict: verdicts.count(verdict) / draws for verdict in Verdict}


NOISE = 3 * np.sqrt(0.025 / 1000)


def test_at_the_edge_of_the_region_no_side_wins_more_often_than_promised():
    """A two-sided 95 % interval lies wholly above the truth in 2.5 % of all cases, and so below."""
    edge = rates(0.2)
    assert edge[V.REPRODUCED] == pytest.approx(0.025, abs=NOISE)
    assert edge[V.NOT_REPRODUCED] <= 0.025 + NOISE


def test_without_an_effect_nothing_is_found_more_often_than_promised():
    none = rates(0.0)
    assert none[V.REPRODUCED] == 0
    assert none[V.PARTLY] <= 0.025 + NOISE
    assert none[V.NOT_REPRODUCED] > 0.9


def test_a_clear_effect_is_found():
    assert rates(0.4)[V.REPRODUCED] > 0.95
    assert rates(0.1)[V.PARTLY] > 0.95
    assert rates(-0.3)[V.NOT_REPRODUCED] == 1


def test_few_and_noisy_seeds_are_inconclusive_not_wrong():
    noisy = rates(0.25, deviation=0.3, seeds=2)
    assert noisy[V.INCONCLUSIVE] > 0.85 and noisy[V.NOT_REPRODUCED] <= 0.05
    assert judge(CLIFF, estimate([0.4])) is V.INCONCLUSIVE


@given(st.floats(-1, 1), st.floats(0, 1))
def test_a_verdict_follows_from_the_interval(mean, half):
    e = Estimate(mean, mean - half, mean + half, 3)
    verdict = judge(CLIFF, e)
    assert (verdict is V.REPRODUCED) == (e.low > 0.2)
    if verdict is V.PARTLY:
        assert e.low > 0 and e.low <= 0.2
    if verdict is V.NOT_REPRODUCED:
        assert e.high <= 0.2 and e.low <= 0
    if verdict is V.INCONCLUSIVE:
        assert e.low <= 0 and e.high > 0.2


@pytest.mark.parametrize("verdicts, whole", [
    ([V.REPRODUCED, V.REPRODUCED], V.REPRODUCED),
    ([V.REPRODUCED, V.NOT_REPRODUCED], V.PARTLY),
    ([V.REPRODUCED, V.NOT_RUN], V.PARTLY),
    ([V.PARTLY, V.INCONCLUSIVE], V.PARTLY),
    ([V.NOT_REPRODUCED, V.INCONCLUSIVE], V.NOT_REPRODUCED),
    ([V.INCONCLUSIVE, V.NOT_RUN], V.INCONCLUSIVE),
    ([V.NOT_RUN, V.NOT_RUN], V.NOT_RUN),
])  # fmt: skip
def test_a_claim_of_several_tests(verdicts, whole):
    assert together(verdicts) is whole


# ---------------------------------------------------------------- which runs


def record(accuracy: float, **fields) -> Record:
    e = Experiment(**fields)
    origin = {"numerics": NUMERICS, "seconds": 1.0}
    return Record(e, {"test_accuracy": {"round": [1, 2], "value": [0.1, accuracy]}}, origin)


def runs(seeds=3, **fields) -> list[Record]:
    return [
        record(accuracy + 0.01 * seed, partition=FixedEMD(emd=emd), seed=seed, **fields)
        for seed in range(seeds) for emd, accuracy in ((0.0, 0.9), (0.72, 0.85), (1.8, 0.5))
    ]  # fmt: skip


def test_the_runs_of_a_claim_are_found_by_their_fields():
    found = outcome(CLIFF, runs())
    assert found.verdict is V.PARTLY or found.verdict is V.REPRODUCED
    assert found.seeds == (0, 1, 2) and len(found.records) == 6
    assert found.values == pytest.approx([0.2, 0.2, 0.2])  # mean of both evaluations


def test_runs_that_are_not_there_are_named():
    found = outcome(CLIFF, [r for r in runs() if r.experiment.partition.emd != 1.8])
    assert found.verdict is V.NOT_RUN and found.estimate is None
    assert found.missing == ("skewed (partition FixedEMD(emd=1.8))",)


def test_only_complete_seeds_count():
    incomplete = [r for r in runs() if (r.experiment.seed, r.experiment.partition.emd) != (1, 1.8)]
    assert outcome(CLIFF, incomplete).seeds == (0, 2)


@pytest.mark.parametrize("other", [{"lr": 0.2}, {"precision": "bf16"}, {"clients": 20}])
def test_two_runs_that_fit_are_an_error_that_names_the_field(other):
    with pytest.raises(InputError, match=next(iter(other))):
        outcome(CLIFF, runs() + runs(**other))
    with pytest.raises(InputError, match=next(iter(other))):
        outcome(CLIFF, runs(seeds=2) + [r for r in runs(**other) if r.experiment.seed == 2])


def lengths(found):
    return {(r.experiment.rounds, r.experiment.train_images) for r in found.records}


def test_of_runs_of_several_lengths_the_longest_that_has_them_all_is_taken():
    short, long, all_images = runs(train_images=500), runs(train_images=500, rounds=70), runs(rounds=70)
    assert lengths(outcome(CLIFF, short + all_images + long)) == {(70, None)}
    for every in (runs() + all_images, all_images + runs()):
        assert lengths(outcome(CLIFF, every)) == {(70, None)}, "of two with all images the one with more rounds"
    without_skewed = [r for r in all_images if r.experiment.partition.emd != 1.8]
    assert lengths(outcome(CLIFF, without_skewed + long + short)) == {(70, 500)}
    family = Test(**dict(CLIFF) | {
        "runs": {"levels": {"partition": {"name": "FixedEMD", "emd": "vary"}}}, "estimate": "max(final(levels))",
    })  # fmt: skip
    assert lengths(outcome(family, without_skewed + short)) == {(30, 500)}, "it has three levels, the longer one two"
    by_round = Test(**dict(CLIFF) | {"differ": ("rounds",)})
    with pytest.raises(InputError, match="rounds"):
        outcome(by_round, short + long)


def test_runs_with_other_settings_are_never_compared():
    iid, skewed = (
        [r for r in runs(lr=lr) if r.experiment.partition.emd == emd] for emd, lr in ((0.0, 0.05), (1.8, 0.1))
    )
    with pytest.raises(InputError, match="the runs differ in lr"):
        outcome(CLIFF, iid + skewed)
    allowed = Test(**dict(CLIFF) | {"differ": ("lr",)})
    assert outcome(allowed, iid + skewed).seeds == (0, 1, 2)


def test_without_methods_a_selection_means_fedavg():
    assert outcome(CLIFF, runs() + runs(methods=(FedProx(),))).seeds == (0, 1, 2)
    assert outcome(CLIFF, runs(methods=(FedAvg(),))).seeds == (0, 1, 2)
    assert outcome(CLIFF, runs(methods=(FedProx(),))).verdict is V.NOT_RUN


def test_a_family_is_in_order_of_its_values():
    test = Test(
        name="order", because="-", runs={"levels": {"partition": {"name": "FixedEMD", "emd": "vary"}}},
        estimate="slope(field(levels), final(levels))", reproduced=Region(below=0.0),
    )  # fmt: skip
    found = outcome(test, runs()[::-1])
    assert found.verdict is V.REPRODUCED and len(found.records) == 9
    with pytest.raises(InputError, match="lr"):
        outcome(test, runs() + runs(lr=0.2))


def test_a_claim_of_a_range_is_not_tested_at_one_value():
    test = Test(
        name="all", because="-", runs={"levels": {"partition": {"name": "FixedEMD", "emd": "vary"}}},
        estimate="min(final(levels))", reproduced=Region(above=0.0), values=2,
    )  # fmt: skip
    one = [r for r in runs() if r.experiment.partition.emd == 0]
    trend = Test(**dict(test) | {"estimate": "rank_correlation(field(levels), final(levels))", "values": 1})
    for asked in (test, trend):
        assert outcome(asked, one).verdict is V.NOT_RUN and "2 values" in outcome(asked, one).missing[0]
        assert outcome(asked, runs()).verdict is not V.NOT_RUN


def test_the_editions_own_data_set_is_preferred():
    both = runs() + runs(dataset="mnist")
    assert {r.experiment.dataset for r in outcome(CLIFF, both, "digits").records} == {"digits"}
    with pytest.raises(InputError, match="dataset"):
        outcome(CLIFF, both)


CLAIM = Claim(key="W1", statement="s", article="a", chapter="small", tests=(CLIFF,))


def test_an_error_names_the_claim():
    with pytest.raises(InputError, match="claim W1, fall"):
        evaluate(CLAIM, runs() + runs(lr=0.2))


def test_a_claim_that_no_run_can_test():
    claim = Claim(key="W2", statement="s", article="a", chapter="c", not_testable=NotTestable(reason="r", needs="n"))
    assert evaluate(claim, runs()).verdict is V.NOT_TESTABLE


def test_a_readers_other_runs_are_not_the_books(tmp_path):
    """What a chapter stands on is noted; another run that fits the same selection stays out, until it is noted."""
    store = Store(tmp_path / "committed", tmp_path / "cache")

    def put(run):
        return store.put(Record(run.experiment, run.series, provenance(run.experiment, "0" * 64, 1.0, 1, 1)))

    own = [f"digits/{put(run).id}" for run in runs()]
    others = [f"digits/{put(run).id}" for run in runs(lr=0.2)]
    assert store.of_chapter("small", "digits") == []
    store.note_chapter("small", "digits", {}, own)
    assert evaluate(CLAIM, store.of_chapter("small", "digits"), "digits").outcomes[0].seeds == (0, 1, 2)
    store.note_chapter("small", "digits", {}, own + others)
    with pytest.raises(InputError, match="lr"):
        evaluate(CLAIM, store.of_chapter("small", "digits"), "digits")


def test_a_deleted_record_is_named(tmp_path):
    store = Store(tmp_path / "committed", tmp_path / "cache")
    kept = store.put(Record(Experiment(partition=Iid()), {}, provenance(Experiment(), "0" * 64, 1.0, 1, 1)))
    store.note_chapter("small", "digits", {}, [f"digits/{kept.id}"])
    assert len(store.of_chapter("small", "digits")) == 1
    kept.path.unlink()
    with pytest.raises(
        StorageError, match=f"digits/{kept.id} .* is missing: `fedlib run small --edition digits` trains"
    ):
        store.of_chapter("small", "digits")


def test_a_calculation_alone_does_not_decide_a_claim_that_needs_runs():
    sure = Test(name="sum", because="-", estimate="0 * seed", reproduced=Region(below=1.0))
    both = Claim(key="M2", statement="s", article="a", chapter="c", tests=(sure, CLIFF))
    assert evaluate(both, []).verdict is V.NOT_RUN
    assert evaluate(both, runs()).verdict in (V.REPRODUCED, V.PARTLY)
    assert evaluate(Claim(key="D1", statement="s", article="a", chapter="c", tests=(sure,)), []).verdict is V.REPRODUCED
