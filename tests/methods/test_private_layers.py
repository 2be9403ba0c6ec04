"""FedPer, LG-FedAvg, FedRep and layers chosen by pattern: what stays, what is averaged, what is sent."""

import pytest
import torch
from examples import play

from fedlib import federation, workers
from fedlib.experiment import Experiment
from fedlib.methods import FedPer, FedProx, FedRep, LGFedAvg, PrivateLayers, TrainOnly
from fedlib.models import CNN
from fedlib.partitions import Dirichlet
from fedlib.spec import InputError

E = Experiment(
    train_images=200, clients=4, per_round=2, rounds=2, batch_size=20, partition=Dirichlet(alpha=0.5), momentum=0.5,
    weight_decay=0.01, model=CNN(channels=(4, 8), dense=(16,), norm="batch"), evaluate_every=2,
)  # fmt: skip
HEAD, CONV1, CONV2, NORMS = 16 * 10 + 10, 9 * 4, 9 * 4 * 8, 4 * 4 + 4 * 8  # weights; no bias before normalisation
FC1 = 8 * 7 * 7 * 16 + 16
SIZE = HEAD + CONV1 + CONV2 + NORMS + FC1

PRIVATE = {  # the method and how many weights are private
    "FedPer": (FedPer(), HEAD),
    "FedPer, dense layers": (FedPer(private=("fc*", "head")), FC1 + HEAD),
    "LG-FedAvg": (LGFedAvg(), SIZE - HEAD),
    "LG-FedAvg, two layers": (LGFedAvg(shared=("fc1", "head")), SIZE - HEAD - FC1),
    "FedRep": (FedRep(head_epochs=2), HEAD),
    "private": (PrivateLayers(private=("norm*",)), NORMS),
    "shared": (PrivateLayers(shared=("conv1", "fc1")), SIZE - CONV1 - FC1),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_what_is_sent_kept_and_left_alone(name):
    method, count = PRIVATE[name]
    run = play(E.but(methods=(method,)))
    setting, sent = run.setting, {k: v["value"] for k, v in run.series.items()}
    assert len(run.w) == SIZE
    client = federation.new_client(setting, 0, 1, run.w, {}, {}, 0.1)
    private = method.mask(client)
    assert int(private.sum()) == count
    assert torch.equal(run.w[private], setting.w_init[private])
    assert not torch.equal(run.w[~private], setting.w_init[~private])
    assert sent["bytes_up"] == sent["bytes_down"] == pytest.approx([2 * 4 * (SIZE - count)] * 2)
    assert sent["client_state_bytes"][-1] == 4 * count * len(run.clients)
    for k, state in run.clients.items():  # everybody's own, and what the client is evaluated with
        assert not torch.equal(state["private"], setting.w_init[private])
        client = federation.new_client(setting, k, 4, run.w, state, {}, 0.1)
        method.personal(client)
        assert torch.equal(client.w[private], state["private"]) and torch.equal(client.w[~private], run.w[~private])


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "FedRep"])
def test_a_single_client_trains_as_without(name):
    """One client loses nothing by keeping layers: shared and private together go FedAvg's way, over several rounds."""
    method, _ = PRIVATE[name]
    alone = E.but(clients=1, per_round=None, train_images=100, partition=Experiment().partition)
    run, plain = play(alone.but(methods=(method,))), play(alone)
    client = federation.new_client(run.setting, 0, 4, run.w, run.clients[0], {}, 0.1)
    method.personal(client)
    torch.testing.assert_close(client.w, plain.w, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "FedRep"])
def test_the_first_round_averages_the_shared_layers_as_fedavg_does(name):
    method, _ = PRIVATE[name]
    run, plain = play(E.but(methods=(method,), rounds=1)), play(E.but(rounds=1))
    client = federation.new_client(run.setting, 0, 1, run.w, {}, {}, 0.1)
    shared = ~method.mask(client)
    assert torch.equal(run.w[shared], plain.w[shared])


def test_fedrep_trains_the_head_first_and_then_only_the_body():
    e = E.but(methods=(FedRep(head_epochs=2),), rounds=1, epochs=3)
    run = play(e)
    s = run.setting
    for k, state in run.clients.items():
        client = federation.new_client(s, k, 1, s.w_init, {}, {}, e.lr)
        head = client.space.layout.select("head")
        with workers.single_thread():
            trained = client.train_copy(s.w_init, (TrainOnly(layers=("head",)),), "head", 2)
        assert torch.equal(trained[head], state["private"])
        body = ~head[: s.space.trained]
        assert torch.equal(trained[: s.space.trained][body], s.w_init[: s.space.trained][body])
    assert run.series["gradients"]["value"] == [(2 + 3) * sum(s.sizes[k] for k in run.clients)]


def test_train_only_leaves_the_rest_as_it_was():
    run = play(E.but(methods=(TrainOnly(layers=("conv1", "head")),)))
    trained = run.setting.space.layout.select("conv1", "head")
    assert torch.equal(run.w[~trained], run.setting.w_init[~trained])
    assert not (run.w[trained] == run.setting.w_init[trained]).all()
    assert run.series["bytes_up"]["value"] == pytest.approx([2 * 4 * (CONV1 + HEAD)] * 2)
    assert run.series["bytes_down"]["value"] == [2 * 4 * SIZE] * 2


def test_a_proximal_term_pulls_private_layers_to_where_the_client_left_them():
    """With a pull that lets nothing move, the private layers stay at the client's own, not at the server's."""
    e = E.but(momentum=0.0, weight_decay=0.0, lr=0.05, rounds=1)
    s = federation.setting(e)
    own = torch.full((HEAD,), 0.5)
    method, prox = FedPer(), FedProx(mu=19.9)
    client = federation.new_client(s, 0, 2, s.w_init, {"private": own}, {}, e.lr)
    method.start(client)
    client.fit(client, methods=(method, prox))
    client.delta = s.w_init - client.w
    method.finish(client)
    assert (client.state["private"] - own).abs().max() < 0.1
    assert not client.delta[method.mask(client)].any()


def test_bad_input():
    for fields in ({}, {"private": ("head",), "shared": ("conv1",)}):
        with pytest.raises(InputError, match="exactly one of the two"):
            PrivateLayers(**fields)
    with pytest.raises(InputError, match="shared"):
        FedPer(shared=("conv1",))
    with pytest.raises(InputError, match="did you mean 'conv1'"):
        play(E.but(methods=(PrivateLayers(private=("conf1",)),)))
