import pytest
import torch
from examples import play

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import DataSharing, FedDistill, NumberFormats
from fedlib.methods.number_formats import rounded
from fedlib.methods.tiers import tiers
from fedlib.models import CNN
from fedlib.spec import InputError

E = Experiment(
    train_images=120, clients=4, rounds=2, batch_size=20, evaluate_every=2,
    model=CNN(channels=(4,), dense=(8,), norm="batch"),
)  # fmt: skip
THREE = NumberFormats(shares=(0.25, 0.25, 0.5), formats=("fp32", "bf16", "int8"))


def test_rounding_is_as_fine_as_the_format():
    s = federation.setting(E)
    layout = s.space.layout
    w = s.w_init.clone()
    w[layout.trained :] = 0.123456789  # running statistics
    layout.view(w, "head.bias").zero_()
    for kind in ("fp32", "bf16", "int8"):
        q = w.clone()
        rounded(q, layout, kind)
        assert torch.equal(q[layout.trained :], w[layout.trained :])
        again = q.clone()
        rounded(again, layout, kind)
        torch.testing.assert_close(again, q, rtol=1e-6, atol=0)
        for name, (offset, _) in layout.places.items():
            before, after = layout.view(w, name), layout.view(q, name)
            if kind == "fp32":
                assert torch.equal(before, after)
            elif kind == "bf16":
                assert ((after - before).abs() <= before.abs() / 256).all()
            elif offset < layout.trained:
                step = before.abs().max() / 127
                assert ((after - before).abs() <= step * 0.5001).all()
                assert len(after.unique()) <= 255
        assert torch.equal(q, w) == (kind == "fp32")


def test_what_devices_receive_and_what_it_costs():
    run = play(E.but(methods=(THREE,)))
    s = run.setting
    size, trained = len(run.w), s.space.trained
    tensors = sum(offset < trained for offset, _ in s.space.layout.places.values())
    assert tensors == 7  # conv1, and weight and bias of norm1, fc1, head
    statistics = 4 * (size - trained)
    costs = [4 * trained + statistics, 2 * trained + statistics, trained + 4 * tensors + statistics]
    tier = tiers(0, 4, THREE.shares)
    assert run.series["bytes_down"]["value"] == pytest.approx([sum(costs[t] for t in tier)] * 2)
    assert run.series["bytes_up"]["value"] == [4 * 4 * size] * 2
    for k in range(4):
        client = federation.new_client(s, k, 1, run.w, {}, {}, 0.1)
        THREE.start(client)
        expected = run.w.clone()
        rounded(expected, s.space.layout, THREE.formats[tier[k]])
        assert torch.equal(client.w, expected) and torch.equal(client.w_start, expected)
        THREE.personal(client)
        torch.testing.assert_close(client.w, expected)


def test_bad_input():
    with pytest.raises(InputError, match="formats"):
        NumberFormats(shares=(1.0,), formats=("fp16",))
    with pytest.raises(InputError, match="one for each"):
        NumberFormats(shares=(1.0,), formats=("fp32", "int8"))


def test_shared_images_cost_the_same_whichever_method_comes_first():
    sharing, e = DataSharing(beta=0.1), E.but(holdout=60, rounds=1)
    images = 4 * sharing.shared(federation.Setting(e.but(methods=(sharing,)))).sample_bytes * 12
    for other in (NumberFormats(shares=(1.0,), formats=("int8",)), FedDistill()):
        alone, one, two = (
            play(e.but(methods=methods)).series["bytes_down"]["value"]
            for methods in ((other,), (sharing, other), (other, sharing))
        )
        assert one == two == [pytest.approx(alone[0] + images)]
