"""Gradient, Hessian-vector product and block forms against autograd's whole Hessian in double precision."""

import numpy as np
import torch

from fedlib import federation
from fedlib.measures.objective import Objective, sample
from fedlib.models import CNN


def test_derivatives(run, objective, exact):
    loss, gradient, hessian = exact
    assert abs(objective.loss(run.w) - float(loss(run.w.double()))) < 1e-6
    torch.testing.assert_close(objective.gradient(run.w).double(), gradient, rtol=1e-4, atol=1e-6)
    v = torch.randn(len(run.w), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(objective.hvp(run.w, v).double(), hessian @ v.double(), rtol=1e-3, atol=1e-4)
    forms = objective.block_forms(run.w, v)
    places = run.setting.space.layout.places
    assert list(forms) == list(places)
    for name, (offset, shape) in places.items():
        b = slice(offset, offset + shape.numel())
        assert abs(forms[name] - float(v[b].double() @ hessian[b, b] @ v[b].double())) < 1e-4 * (1 + abs(forms[name]))


def test_chunks_add_up_and_order_does_not_matter(run, monkeypatch):
    images, labels = sample(run.setting, "test", 30)
    whole = Objective(run.setting.space, images, labels)
    v = torch.ones(len(run.w))
    results = [(whole.loss(run.w), whole.gradient(run.w), whole.hvp(run.w, v))]
    monkeypatch.setattr("fedlib.measures.objective.CHUNK", 7)
    results.append((whole.loss(run.w), whole.gradient(run.w), whole.hvp(run.w, v)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_training_mode_gives_the_gradient_of_a_local_step_and_keeps_w(run):
    e = run.experiment.but(model=CNN(channels=(2,), dense=(3,), norm="batch"))
    s = federation.Setting(e)
    w = s.w_init.clone()
    client = federation.new_client(s, 0, 1, w, {}, {}, 0.1)
    objective = Objective(s.space, client.x, client.y)
    before = w.clone()
    g = objective.gradient(w, training=True)
    assert torch.equal(w, before)
    s.space.network.train()
    s.space.gradient(client, s.space.images(client.x), client.y, [])
    torch.testing.assert_close(g, s.space.g, rtol=1e-4, atol=1e-6)
    assert not torch.allclose(g, objective.gradient(w), rtol=1e-2)  # running statistics differ from the batch's


def test_samples_are_distinct_and_the_same_in_every_call(run):
    setting = run.setting
    images, labels = sample(setting, "train", 100)
    again = sample(setting, "train", 100)
    assert np.array_equal(images, again[0]) and np.array_equal(labels, again[1])
    assert len({image.tobytes() for image in images}) == 100
    held = {image.tobytes() for image in setting.dataset.x_train[setting.train]}
    assert all(image.tobytes() in held for image in images)
    assert len(sample(setting, "test", 10**6)[1]) == len(setting.dataset.y_test)
