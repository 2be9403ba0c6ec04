import torch
import torch.nn.functional as F
from examples import play

from fedlib import federation, workers
from fedlib.experiment import Experiment
from fedlib.methods import FedDistill
from fedlib.models import CNN
from fedlib.partitions import Iid, Shards

E = Experiment(
    train_images=120, clients=3, rounds=3, batch_size=20, partition=Iid(), model=CNN(channels=(4,), dense=(8,)),
    evaluate_every=3,
)  # fmt: skip


def test_outputs_are_all_that_moves():
    run = play(E.but(methods=(FedDistill(),)))
    message = 3 * 4 * (10 * 10 + 10)
    assert run.series["bytes_up"]["value"] == [message] * 3
    assert run.series["bytes_down"]["value"] == [0, message, message]  # nothing to hear yet in the first round
    assert run.series["gradients"]["value"] == [120] * 3
    assert torch.equal(run.w, run.setting.w_init)


def test_gamma_0_is_local_training():
    run, s = play(E.but(methods=(FedDistill(gamma=0.0),))), federation.setting(E)
    for k in range(3):
        w = s.w_init
        for round in (1, 2, 3):
            client = federation.new_client(s, k, round, w, {}, {}, E.lr)
            with workers.single_thread():
                client.fit(client, methods=())
            w = client.w.clone()
        assert torch.equal(run.clients[k]["fd_model"], w)


def test_a_client_hears_the_mean_of_the_others_that_held_the_label():
    e = E.but(rounds=1, clients=5, partition=Shards(classes_per_client=4), methods=(FedDistill(),))
    run = play(e)
    own = torch.stack([run.clients[k]["fd_own"] for k in range(5)])
    held = torch.stack([run.clients[k]["fd_held"] for k in range(5)]).bool()
    assert torch.equal(held.sum(1), torch.full((5,), 4))
    torch.testing.assert_close(own[held].sum(1), torch.ones(20))  # means of probabilities
    for k in range(5):
        client = federation.new_client(run.setting, k, 2, run.w, dict(run.clients[k]), run.broadcast, 0.1)
        e.methods[0].start(client)
        for label in range(10):
            others = [i for i in range(5) if i != k and held[i, label]]
            mean = own[others, label].mean(0) if others else torch.zeros(10)
            torch.testing.assert_close(client.state["fd_teacher"][label], mean)
    # A round later without the client, the server's sum has nothing of its own in it.
    client = federation.new_client(run.setting, 0, 3, run.w, dict(run.clients[0]), run.broadcast, 0.1)
    e.methods[0].start(client)
    label = int(held[0].int().argmax())
    torch.testing.assert_close(client.state["fd_teacher"][label], own[held[:, label], label].mean(0))


def test_the_term_is_a_cross_entropy_with_the_teachers_and_nothing_without_one():
    s = federation.setting(E)
    client = federation.new_client(s, 0, 2, s.w_init, {}, {}, 0.1)
    teacher = torch.zeros(10, 10)
    teacher[3] = torch.linspace(0, 0.2, 10) / torch.linspace(0, 0.2, 10).sum()
    client.state = {"fd_teacher": teacher, "fd_outputs": torch.zeros(10, 10), "fd_seen": torch.zeros(10)}
    scores, y = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 3, 1, 7])
    term = FedDistill(gamma=0.5).loss(client, None, y, None, scores)
    expected = -0.5 * (teacher[3] * F.log_softmax(scores[:2], 1)).sum() / 4
    torch.testing.assert_close(term, expected)
    torch.testing.assert_close(client.state["fd_outputs"][3], scores[:2].softmax(1).sum(0))
    assert client.state["fd_seen"].tolist() == [0, 1, 0, 2, 0, 0, 0, 1, 0, 0]
