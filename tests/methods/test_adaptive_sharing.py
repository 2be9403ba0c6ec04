import pytest
import torch
from examples import ONE_CLASS, play

from fedlib import federation
from fedlib.methods import AdaptiveSharing, DataSharing
from fedlib.methods.adaptive_sharing import accuracy
from fedlib.partitions import ConceptDrift, Iid, TemporalOrder

IMAGE = 28 * 28 + 1


def used(run) -> list[float]:
    """Shared samples trained on, per round, over all clients (E = 1)."""
    own = 400 * run.experiment.partition.window if isinstance(run.experiment.partition, TemporalOrder) else 400
    return [value - own for value in run.series["gradients"]["value"]]


def test_with_floor_one_it_is_data_sharing_to_the_last_bit():
    fixed = play(ONE_CLASS.but(methods=(DataSharing(beta=0.1),)))
    adaptive = play(ONE_CLASS.but(methods=(AdaptiveSharing(beta=0.1, floor=1.0, gain=0.0),)))
    assert torch.equal(fixed.w, adaptive.w)
    none = play(ONE_CLASS.but(methods=(AdaptiveSharing(beta=0.1, floor=0.0, gain=0.0),)))
    assert torch.equal(none.w, play(ONE_CLASS).w)


def test_beta_is_the_formula_of_the_measured_shift():
    method = AdaptiveSharing(beta=0.1, floor=0.1, gain=1.37)
    run = federation.begin(ONE_CLASS.but(methods=(method,), rounds=3))
    s, w = run.setting, run.w.clone()
    for _ in federation.play(run):
        at_g, expected = accuracy(s, w, method.shared(s).x, method.shared(s).y), 0
        for k in range(10):
            shift = abs(accuracy(s, w, *s.samples(k, run.round)) - at_g)
            expected += int(min(1, 0.1 + 1.37 * shift) * 40 + 0.5)
        assert used(run)[-1] == expected
        assert float(run.server["adaptive_sharing.accuracy"]) == pytest.approx(at_g)
        w = run.w.clone()


def test_concept_drift_raises_beta_when_it_begins():
    e = ONE_CLASS.but(partition=ConceptDrift(fraction=1.0, from_round=7), rounds=7, epochs=2, evaluate_every=7)
    calm = e.but(partition=Iid())
    method = AdaptiveSharing(beta=0.1, floor=0.1, gain=2.0)
    runs = [play(one.but(methods=(method,), epochs=1)) for one in (e, calm)]
    drifted, steady = map(used, runs)
    assert drifted[:6] == steady[:6]  # the same partition until then
    assert drifted[6] > 2 * steady[6]


def test_images_are_sent_when_first_used():
    method = AdaptiveSharing(beta=0.1, floor=0.1, gain=2.0)
    e = ONE_CLASS.but(partition=TemporalOrder(window=0.25, period=4), rounds=6, methods=(method,), batch_size=None)
    run = play(e)
    beside = 10 * 4 * (len(run.w) + 1)  # weights, and the server's accuracy
    sent = [(value - beside) / IMAGE for value in run.series["bytes_down"]["value"]]
    kept = sum(float(state["data_sharing.received"]) for state in run.clients.values())
    assert sum(sent) == kept <= 10 * 40 and min(sent) >= 0
    assert sent[0] == used(run)[0] and sum(sent) < sum(used(run))
