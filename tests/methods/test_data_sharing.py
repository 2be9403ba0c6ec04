import numpy as np
import pytest
import torch
from examples import ONE_CLASS, play
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import federation
from fedlib import workers as pools
from fedlib.measures.emd import emd
from fedlib.methods import AdaptiveSharing, DataSharing, Prototypes
from fedlib.methods.shared_set import draw
from fedlib.models import CNN
from fedlib.spec import InputError

PIXELS = 28 * 28


def test_beta_zero_is_fedavg_to_the_last_bit():
    plain, off = play(ONE_CLASS), play(ONE_CLASS.but(methods=(DataSharing(beta=0.0, warm_up=2),)))
    assert torch.equal(plain.w, off.w)
    assert {n for n, series in plain.series.items() if off.series[n] != series} <= {"client_state_bytes"}  # a counter
    assert not torch.equal(plain.w, play(ONE_CLASS.but(methods=(DataSharing(beta=0.1),))).w)


@pytest.mark.parametrize("beta", [0.025, 0.05, 0.1, 0.25])
def test_emd_after_sharing_is_the_closed_form(beta):
    method = DataSharing(beta=beta)
    s = federation.Setting(ONE_CLASS.but(methods=(method,)))
    labels = [s.samples(k, 1)[1] for k in range(10)]
    held = np.stack([np.bincount(y, minlength=10) for y in labels])
    assert emd(held) == pytest.approx(np.full(10, 1.8 / (1 + 10 * beta)), rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(size=st.integers(0, 100), seed=st.integers(0, 3))
def test_g_is_uniform_nested_and_out_of_the_holdout(size, seed):
    s = federation.setting(ONE_CLASS.but(seed=seed))
    g = draw(s, size)
    per_class = np.bincount(s.dataset.y_train[g], minlength=10)
    assert len(set(g)) == size and np.ptp(per_class) <= 1
    assert np.isin(g, s.holdout).all() and not np.isin(g, s.train).any()
    assert np.array_equal(draw(s, 100)[:size], g)


def test_alpha_is_each_clients_own_random_part_of_g():
    method = DataSharing(beta=0.1, alpha=0.5)
    s = federation.Setting(ONE_CLASS.but(methods=(method,)))
    g = {image.tobytes() for image in method.shared(s).x}
    parts = [{image.tobytes() for image in method.received(s, k).x} for k in range(10)]
    assert len(g) == 40 and all(len(part) == 20 and part < g for part in parts)
    assert len(set(map(frozenset, parts))) == 10
    assert np.array_equal(method.received(s, 3).x, method.received(s, 3).x)
    whole = DataSharing(beta=0.1)
    received = whole.received(federation.Setting(ONE_CLASS.but(methods=(whole,))), 0)
    assert {image.tobytes() for image in received.x} == g


def test_validation_images_are_never_shared():
    for method in (DataSharing(beta=0.1), AdaptiveSharing(beta=0.1), Prototypes(beta=0.1)):
        s = federation.Setting(ONE_CLASS.but(methods=(method,)))
        assert len(s.validation) == 60 and not np.isin(s.validation, method.reserves(s)).any()
        assert len(s.split("validation")[1]) == 60
    everything = play(ONE_CLASS.but(methods=(DataSharing(beta=0.25),), rounds=1))
    assert "validation_loss" not in everything.series
    with pytest.raises(InputError, match="120 images to draw for sharing.*at most 100"):
        federation.check(ONE_CLASS.but(methods=(DataSharing(beta=0.3),)))


@pytest.mark.parametrize("workers", [1, 2])
def test_bytes_are_counted_once_per_client_and_n_k_has_the_shared_samples(monkeypatch, workers):
    """Clients {7, 3} of 10 in rounds 1 and 2, {3, 5} in round 3."""
    monkeypatch.setattr(federation, "uniform", lambda e, r: [7, 3] if r < 3 else [3, 5])
    e = ONE_CLASS.but(rounds=3, per_round=2, methods=(DataSharing(beta=0.05, alpha=0.5),))
    pools.wait(workers)
    run = federation.begin(e, workers=workers)
    for _ in federation.play(run):
        pass
    sent, weights = 10 * (PIXELS + 1), 2 * 4 * len(run.w)
    assert run.series["bytes_down"]["value"] == [weights + 2 * sent, weights, weights + sent]
    assert run.series["gradients"]["value"] == [2 * (40 + 10)] * 3
    assert sorted(run.clients) == [3, 5, 7]


def test_warm_up_is_sgd_on_g_before_round_one(monkeypatch):
    before = []  # global weights as the clients of each round get them

    def uniform(e, r):
        before.append(run.w.clone())
        return [7, 3]

    monkeypatch.setattr(federation, "uniform", uniform)
    method = DataSharing(beta=0.1, warm_up=3)
    run = federation.begin(ONE_CLASS.but(methods=(method,), per_round=2))
    after = [one.w.clone() for one in federation.play(run)]
    g = method.shared(run.setting)
    at_start, warm = (run.setting.scores(w, g.x, g.y)[0] / len(g.y) for w in (run.setting.w_init, before[0]))
    assert warm < 0.9 * at_start
    assert torch.equal(before[1], after[0])
    assert run.series["gradients"]["value"] == [3 * 40 + 2 * 80, 2 * 80]


def test_sharing_lifts_one_class_clients():
    """The paper's contrast (experiment a): sharing helps, by far."""
    e = ONE_CLASS.but(train_images=1000, rounds=6, evaluate_every=6, epochs=2, model=CNN(channels=(4, 8), dense=(32,)))
    plain, shared = play(e), play(e.but(methods=(DataSharing(beta=0.1),)))
    assert shared.series["test_accuracy"]["value"][-1] > plain.series["test_accuracy"]["value"][-1] + 0.1


def test_two_sources_of_shared_data_are_refused():
    with pytest.raises(InputError, match="two methods that share data"):
        federation.check(ONE_CLASS.but(methods=(DataSharing(), AdaptiveSharing())))


def test_full_batch_includes_the_shared_samples():
    run = play(ONE_CLASS.but(batch_size=None, methods=(DataSharing(beta=0.05),), rounds=1))
    assert run.series["gradients"]["value"] == [10 * 60]
