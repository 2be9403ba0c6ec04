import numpy as np
import pytest
import torch
from examples import BASE, ONE_CLASS, play

from fedlib import federation
from fedlib.measures.poison_detection import PoisonDetection
from fedlib.methods import DataSharing, FineTuning, LabelFlips, PoisonCheck
from fedlib.models import CNN
from fedlib.spec import InputError

ATTACK = DataSharing(beta=0.25, copies=(LabelFlips(fraction=0.25),))


def test_the_attack_changes_so_many_labels_and_nothing_else():
    s = federation.Setting(ONE_CLASS.but(methods=(ATTACK,)))
    clean = DataSharing(beta=0.25).shared(federation.Setting(ONE_CLASS.but(methods=(DataSharing(beta=0.25),))))
    g = ATTACK.shared(s)
    assert g.poisoned.sum() == 25 and np.array_equal(g.poisoned, g.y != clean.y)
    assert np.array_equal(g.x, clean.x) and len(set((g.y - clean.y)[g.poisoned] % 10)) > 3


def test_detection_and_false_alarms_on_digits():
    """A model trained for some rounds finds most flipped labels at few false alarms, a fresh one flags nothing; both
    rates are those counted by hand."""
    e = ONE_CLASS.but(
        train_images=1000, holdout=200, rounds=8, evaluate_every=8, model=CNN(channels=(8,), dense=(32,)),
        methods=(DataSharing(beta=0.2, copies=(LabelFlips(fraction=0.25),)), PoisonCheck()),
        measures=(PoisonDetection(),),
    )  # fmt: skip
    run = federation.begin(e)
    w = run.w.clone()
    for _ in federation.play(run):
        if run.round < 8:
            w = run.w.clone()
    found, alarms = (run.series[name]["value"] for name in ("poison_detection_rate", "poison_false_alarms"))
    assert found[0] == alarms[0] == 0
    assert found[-1] > 0.5 and alarms[-1] < 0.1
    s, g = run.setting, e.methods[0].shared(run.setting)
    flagged = np.array([np.exp(-s.scores(w, x[None], y[None])[0]) for x, y in zip(g.x, g.y, strict=True)])
    best = np.array([max(np.exp(-s.scores(w, x[None], np.array([c]))[0]) for c in range(10)) for x in g.x])
    flagged = np.log(best / flagged) > 2
    assert found[-1] == pytest.approx(flagged[g.poisoned].mean(), abs=1e-6)
    assert alarms[-1] == pytest.approx(flagged[~g.poisoned].mean(), abs=1e-6)
    # Every client has all of G here and trains on what was not flagged.
    assert run.series["gradients"]["value"][-1] == 1000 + 10 * (~flagged).sum()


def test_a_client_of_one_class_cannot_judge_with_its_own_model():
    methods = (ATTACK, PoisonCheck(model="own"))
    run = play(ONE_CLASS.but(rounds=1, lr=0.1, epochs=5, methods=methods, measures=(PoisonDetection(),)))
    assert run.series["poison_false_alarms"]["value"][0] > 0.5
    assert run.series["gradients"]["value"][0] > 2 * 400 * 5  # its own model was trained first


def test_a_personal_model_leaves_out_what_training_left_out():
    methods = (ATTACK, PoisonCheck(margin=0.0), FineTuning(epochs=1, layers=("*",)))
    run = play(ONE_CLASS.but(methods=methods, rounds=2))
    client = federation.started(run.experiment, 0, 3, run.w, dict(run.clients[0]), {})
    assert 0 < client.n < len(run.setting.samples(0, 3)[1])
    score = federation.score_client(run.experiment, run.w, 0, 3, run.clients[0], {}, "own")
    assert score.gradients == client.n
    assert torch.equal(run.clients[0]["poison_check"], play(run.experiment).clients[0]["poison_check"])


def test_nothing_received_nothing_checked():
    run = play(ONE_CLASS.but(methods=(DataSharing(beta=0.0), PoisonCheck()), measures=(PoisonDetection(),), rounds=1))
    assert "poison_detection_rate" not in run.series


def test_it_needs_shared_data():
    with pytest.raises(InputError, match="PoisonCheck needs DataSharing"):
        federation.check(BASE.but(methods=(PoisonCheck(),)))
    with pytest.raises(InputError, match="PoisonDetection needs"):
        federation.check(BASE.but(measures=(PoisonDetection(),)))
