from dataclasses import replace

import pytest
import torch
from examples import BASE, play

from fedlib import federation
from fedlib.methods import SkipUpdate, UpdateMask
from fedlib.methods.masks import blocks
from fedlib.models import CNN

UNITS = ["tensor", "row", "column", "element"]


@pytest.fixture(scope="module")
def setting():
    return federation.Setting(BASE.but(clients=4, per_round=None))


def client_of(setting, index=0, round=1):
    return federation.new_client(setting, index, round, setting.w_init, {}, {}, 0.1)


@pytest.mark.parametrize("unit", UNITS)
def test_blocks(setting, unit):
    """Every slice that the unit means is one block, of its own number, and the numbers are without a gap."""
    layout = setting.space.layout
    ids = blocks(layout, unit)
    assert ids.shape == (layout.trained,)
    assert torch.equal(ids.unique(), torch.arange(int(ids[-1]) + 1))
    count = 0
    for name in layout.places:
        own = layout.view(ids, name)
        if unit == "element":
            slices = own.reshape(-1, 1)
        elif unit == "tensor" or own.dim() == 1:
            slices = own.reshape(1, -1)
        else:
            slices = (own if unit == "row" else own.transpose(0, 1)).flatten(1)
        numbers = slices[:, 0]
        assert torch.equal(slices, numbers[:, None].expand_as(slices))
        assert len(numbers.unique()) == len(numbers) and not (numbers < count).any()
        count += len(numbers)
    assert count == int(ids[-1]) + 1


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("unit", ["tensor", "row", "element"])
def test_variance_of_the_averaged_update(setting, shared, unit):
    """Over many rounds the masked mean is the mean, and its variance in each tensor is (1 - p)/p times
    sum_k p_k^2 ||Delta_k||^2 for independent masks and ||sum_k p_k Delta_k||^2 for shared ones."""
    layout, p, rounds = setting.space.layout, 0.3, 500
    method = UpdateMask(p=p, unit=unit, shared=shared)
    weights = torch.tensor(setting.sizes / setting.sizes.sum(), dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    common, own = torch.randn(layout.size, generator=generator), torch.randn(4, layout.size, generator=generator)
    deltas = common + own
    mean = weights @ deltas
    clients = [client_of(setting, k) for k in range(4)]
    total, squared = torch.zeros(layout.size), torch.zeros(len(layout.places), rounds)
    for r in range(rounds):
        masked = torch.zeros(layout.size)
        for k, client in enumerate(clients):
            sent = replace(client, round=r, delta=deltas[k].clone())
            method.finish(sent)
            masked += weights[k] * sent.delta
        total += masked
        for i, name in enumerate(layout.places):
            squared[i, r] = (layout.view(masked, name) - layout.view(mean, name)).square().sum()
    separate = weights.square() @ deltas.square()
    variance = (1 - p) / p * (mean.square() if shared else separate)
    # Mean and variance within 5 standard errors of what is expected.
    assert ((total / rounds - mean).abs() < 5 * (variance / rounds).sqrt()).all()
    for i, name in enumerate(layout.places):
        error = squared[i].std() / rounds**0.5
        assert abs(squared[i].mean() - layout.view(variance, name).sum()) < 5 * error + 1e-6


def test_shared_masks_are_the_same_for_all_and_others_are_not(setting):
    def masks(method, round=1, step=0):
        return [method.mask(client_of(setting, k, round), step) for k in range(4)]

    shared, own = masks(UpdateMask(unit="element", shared=True)), masks(UpdateMask(unit="element"))
    assert all(torch.equal(m, shared[0]) for m in shared)
    agreement = [float((own[0] == m).float().mean()) for m in own[1:]]
    assert agreement == pytest.approx([0.5] * 3, abs=0.05)
    for other in (
        masks(UpdateMask(unit="element", shared=True), round=2),
        masks(SkipUpdate(unit="element", shared=True), step=1),
    ):
        assert float((other[0] == shared[0]).float().mean()) == pytest.approx(0.5, abs=0.05)


def test_running_statistics_are_not_masked():
    batchnorm = BASE.but(model=CNN(channels=(4, 8), norm="batch"), rounds=1)
    plain, masked = play(batchnorm), play(batchnorm.but(methods=(UpdateMask(),)))
    trained = plain.setting.space.trained
    assert torch.equal(masked.w[trained:], plain.w[trained:])
    assert not torch.equal(masked.w[:trained], plain.w[:trained])
