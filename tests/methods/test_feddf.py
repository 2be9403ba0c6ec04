import pytest
import torch
import torch.nn.functional as F
from examples import play

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import DataSharing, FedDF, TrainOnly
from fedlib.models import CNN
from fedlib.partitions import Shards
from fedlib.spec import InputError

E = Experiment(
    train_images=200, holdout=50, clients=5, per_round=3, rounds=1, epochs=3, batch_size=10,
    partition=Shards(classes_per_client=2), model=CNN(channels=(4,), dense=(8,), norm="batch"),
)  # fmt: skip


class Teachers:
    """What the server had before it distilled: caught from the method's last hook."""

    def __init__(self, monkeypatch):
        after = FedDF.after

        def caught(method, server):
            self.average = server.w.clone()
            self.mean_scores = server.received["feddf_scores"] / len(server.selected)
            after(method, server)

        monkeypatch.setattr(FedDF, "after", caught)


def test_the_student_comes_nearer_to_the_ensemble(monkeypatch):
    teachers = Teachers(monkeypatch)
    run, plain = play(E.but(methods=(FedDF(steps=60),))), play(E)
    s = run.setting
    images = torch.from_numpy(s.split("validation")[0])
    assert len(images) == 50
    assert torch.equal(teachers.average, plain.w)

    def divergence(w):
        with torch.no_grad():
            scores = s.space.at(w)(s.space.images(images))
        return float(F.kl_div(scores.log_softmax(1), teachers.mean_scores.softmax(1), reduction="batchmean"))

    assert divergence(run.w) < 0.5 * divergence(plain.w)
    statistics = slice(s.space.trained, None)
    assert torch.equal(run.w[statistics], plain.w[statistics])
    assert not torch.equal(run.w, plain.w)
    for name in ("bytes_up", "bytes_down"):  # clients send what they send in FedAvg
        assert run.series[name] == plain.series[name]
    assert run.series["gradients"]["value"][0] - plain.series["gradients"]["value"][0] == 60 * 50


def test_scores_cost_no_bytes_whatever_the_order_of_methods():
    alone, first, last = (
        play(E.but(methods=methods)).series["bytes_up"]
        for methods in ((TrainOnly(),), (FedDF(steps=1), TrainOnly()), (TrainOnly(), FedDF(steps=1)))
    )
    assert alone == first == last


def test_the_teacher_is_the_mean_of_the_clients_scores(monkeypatch):
    teachers, scores = Teachers(monkeypatch), []
    finish = FedDF.finish

    def caught(method, client):
        images = torch.from_numpy(client.setting.split("validation")[0])
        with torch.no_grad():
            scores.append(client.space.at(client.w.clone())(client.space.images(images)))
        finish(method, client)

    monkeypatch.setattr(FedDF, "finish", caught)
    play(E.but(methods=(FedDF(steps=1),)))
    torch.testing.assert_close(teachers.mean_scores, torch.stack(scores).mean(0))


def test_it_needs_images_on_the_server():
    with pytest.raises(InputError, match="holdout = 0"):
        federation.check(E.but(holdout=0, methods=(FedDF(),)))
    for beta in (0.2, 0.25):
        e = E.but(methods=(DataSharing(beta=beta), FedDF()))
        if beta == 0.2:
            federation.check(e)
            continue
        with pytest.raises(InputError, match="FedDF: the whole holdout is shared"):
            federation.check(e)
