"""The penalty in closed form against the whole Hessian, against every mask there is, and against drawn masks."""

import itertools

import numpy as np
import pytest
import torch

from fedlib import federation
from fedlib.measures.masking_penalty import MaskingPenalty, masked, penalty, sampled
from fedlib.measures.objective import Objective, sample


def updates(run, count, scale):
    """Small synthetic updates of `count` clients, and their sample counts."""
    generator = torch.Generator().manual_seed(0)
    deltas = [scale * torch.randn(len(run.w), generator=generator) for _ in range(count)]
    return deltas, [10 + 7 * k for k in range(count)]


def all_masks(blocks, p):
    """Every mask of `blocks` tensors with entries 0 and 1 / p, and its probability."""
    kept = np.array(list(itertools.product([0.0, 1.0], repeat=blocks)))
    return kept / p, np.prod(np.where(kept == 1, p, 1 - p), axis=1)


@pytest.mark.parametrize("p", [0.25, 0.5, 0.9])
def test_closed_form_is_the_hessians_block_diagonal(run, objective, exact, p):
    delta = updates(run, 1, 0.02)[0][0]
    by_hand = 0.0
    for offset, shape in run.setting.space.layout.places.values():
        b = slice(offset, offset + shape.numel())
        by_hand += float(delta[b].double() @ exact[2][b, b] @ delta[b].double()) * (1 - p) / (2 * p)
    assert penalty(objective, run.w, delta, p) == pytest.approx(by_hand, rel=1e-3)


@pytest.mark.parametrize("p", [0.5, 0.8])
def test_closed_form_is_the_expected_rise_over_all_masks(run, objective, exact, p):
    """Proposition 1, with all 256 masks and the loss in double precision: a finite difference of second order.

    The update is so small that it crosses no kink of a ReLU.
    """
    loss, layout = exact[0], run.setting.space.layout
    delta = updates(run, 1, 3e-6)[0][0]
    masks, probability = all_masks(len(layout.places), p)
    at_mean = loss(run.w.double() - delta.double())
    rises = [float(loss(run.w.double() - row.double()) - at_mean) for row in masked(layout, delta, masks)]
    assert penalty(objective, run.w - delta, delta, p) == pytest.approx(probability @ rises, rel=1e-3)


def test_drawn_masks_estimate_the_same(smooth):
    """With p = 1/2 all masks are equally likely: drawing each once leaves no error but that of third order."""
    s, delta = smooth.setting, updates(smooth, 1, 3e-3)[0][0]
    objective = Objective(s.space, *sample(s, "train", 40))
    masks = all_masks(2, 0.5)[0]
    value, error = sampled(objective, smooth.w - delta, delta - masked(s.space.layout, delta, masks))
    assert value == pytest.approx(penalty(objective, smooth.w - delta, delta, 0.5), rel=0.01)
    assert 0 < error < abs(value)


def test_through_the_measure(smooth):
    """Independent masks dilute by p_k^2, a shared mask sees the mean update; drawn masks agree with both."""
    run = smooth
    s, measure = run.setting, MaskingPenalty(draws=400, images=40)
    deltas, sizes = updates(run, 4, 3e-3)
    scratch, values = measure.begin(run), {}
    for k, (delta, n) in enumerate(zip(deltas, sizes, strict=True)):
        client = federation.new_client(s, k, run.round, run.w, {}, {}, 0.1)
        client.delta, client.weight = delta, n
        values[k] = measure.client(client)
        measure.observe(scratch, k, n, delta, values[k])
    server = type("Server", (), {"space": s.space, "setting": s})
    result = measure.finish(scratch, run, server, values)

    objective = Objective(s.space, *sample(s, "train", 40))
    shares = np.array(sizes) / sum(sizes)
    each = np.array([penalty(objective, run.w, delta, 0.5) for delta in deltas])
    assert result["penalty_independent"] == pytest.approx(shares**2 @ each)
    mean = sum(share * delta for share, delta in zip(shares.tolist(), deltas, strict=True))
    assert result["penalty_shared"] == pytest.approx(penalty(objective, run.w, mean, 0.5), rel=1e-4)
    for kind in ("independent", "shared"):
        error = result[f"penalty_{kind}_sampled_error"]
        assert error < 0.2 * abs(result[f"penalty_{kind}"])
        # Closed form at w, masks around w - mean update: they differ by a third order of a few per cent.
        difference = abs(result[f"penalty_{kind}_sampled"] - result[f"penalty_{kind}"])
        assert difference < 4 * error + 0.05 * result[f"penalty_{kind}"]


def test_equal_updates_keep_the_whole_penalty_under_a_shared_mask(run):
    s, measure, k = run.setting, MaskingPenalty(draws=2, images=20), 5
    delta = updates(run, 1, 0.01)[0][0]
    scratch = measure.begin(run)
    client = federation.new_client(s, 0, run.round, run.w, {}, {}, 0.1)
    client.delta, client.weight = delta, client.n
    values = {index: measure.client(client) for index in range(k)}
    for index in range(k):
        measure.observe(scratch, index, client.n, delta, values[index])
    result = measure.finish(scratch, run, type("Server", (), {"space": s.space, "setting": s}), values)
    assert result["penalty_shared"] / result["penalty_independent"] == pytest.approx(k, rel=1e-4)


def test_masks_keep_with_probability_p_and_are_drawn_per_client_and_round():
    measure = MaskingPenalty(p=0.3, draws=5000)
    masks = measure._masks(0, "independent", 1, 0, 8)
    assert set(np.unique(masks)) == {0, 1 / 0.3}
    assert masks.mean(0) == pytest.approx(np.ones(8), abs=5 * np.sqrt(0.7 / 0.3 / 5000))
    assert abs(np.corrcoef(masks.T) - np.eye(8)).max() < 0.08
    for other in ((0, "independent", 1, 1, 8), (0, "independent", 2, 0, 8), (1, "independent", 1, 0, 8)):
        assert not np.array_equal(masks, measure._masks(*other))
