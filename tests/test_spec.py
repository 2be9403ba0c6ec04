"""Specifications: strict, frozen, round-tripping, with errors that help."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.experiment import Experiment
from fedlib.methods import FedAvg
from fedlib.models import CNN
from fedlib.partitions import Dirichlet, FixedEMD, Iid, Shards
from fedlib.schedules import Exponential
from fedlib.spec import InputError

partitions = st.one_of(
    st.just(Iid()),
    st.builds(Dirichlet, alpha=st.floats(0.01, 100)),
    st.builds(Shards, classes_per_client=st.integers(1, 10)),
    st.builds(FixedEMD, emd=st.floats(0, 1.8)),
)
experiments = st.builds(
    Experiment,
    partition=partitions,
    clients=st.integers(1, 1000),
    per_round=st.none() | st.integers(1, 100),
    batch_size=st.none() | st.integers(1, 500),
    lr=st.floats(1e-5, 10),
    schedule=st.builds(Exponential, decay=st.floats(0.5, 1)),
    model=st.builds(CNN, channels=st.lists(st.integers(1, 64), min_size=1, max_size=4).map(tuple)),
    methods=st.sampled_from([(), (FedAvg(),)]),
    precision=st.sampled_from(["fp32", "bf16"]),
    seed=st.integers(0, 2**31),
)


@given(experiments)
def test_an_experiment_survives_json(e):
    again = Experiment.from_dict(json.loads(json.dumps(e.to_dict())))
    assert again == e
    assert again.id == e.id


@given(experiments, experiments)
def test_the_id_tells_experiments_apart(a, b):
    assert (a.id == b.id) == (a == b)


def test_defaults_do_not_change_the_id():
    assert Experiment(rounds=5).id == Experiment(rounds=5, momentum=0.0).id
    assert Experiment(rounds=5).id != Experiment(rounds=5, momentum=0.5).id


def test_an_experiment_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Experiment().rounds = 3


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rouns": 3}, "no parameter 'rouns'; did you mean 'rounds'"),
        ({"rounds": 0}, "rounds = 0: input should be greater than or equal to 1"),
        ({"rounds": "3"}, "rounds = '3': input should be a valid integer"),
        ({"rounds": True}, "rounds = True"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"lr": 0.0}, "lr = 0.0: input should be greater than 0"),
        ({"precision": "fp16"}, "precision = 'fp16': input should be 'fp32' or 'bf16'"),
        ({"partition": {"name": "Dirichlet", "alpha": -1.0}}, "alpha = -1.0: input should be greater than 0"),
        ({"partition": {"name": "Dirichlet", "alpah": 1.0}}, "did you mean 'alpha'"),
        ({"partition": {"name": "Dirichlte"}}, "unknown partition 'Dirichlte'; did you mean 'Dirichlet'"),
        ({"methods": [{"name": "FedAvgg"}]}, "unknown method 'FedAvgg'; did you mean 'FedAvg"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(InputError) as error:
        Experiment.from_dict(fields)
    assert message in str(error.value)


def test_but_is_validated():
    assert Experiment().but(rounds=7).rounds == 7
    with pytest.raises(InputError, match="rounds"):
        Experiment().but(rounds=-1)
