"""A method refuses the name of a layer that the network lacks, before training, and says the nearest that it has."""

import typing

import pytest
from examples import BASE

from fedlib import federation
from fedlib.measures import Measure
from fedlib.methods import FedDecorr, FedPer, FedRep, FineTuning, LGFedAvg, PrivateLayers, TrainOnly, published
from fedlib.models import ResNet
from fedlib.spec import InputError

NAMED = {
    ("FedDecorr", "layer"): lambda name: FedDecorr(layer=name),
    ("PrivateLayers", "private"): lambda name: PrivateLayers(private=(name,)),
    ("PrivateLayers", "shared"): lambda name: PrivateLayers(shared=("head", name)),
    ("FedPer", "private"): lambda name: FedPer(private=("head", name)),
    ("FedRep", "private"): lambda name: FedRep(private=(name,)),
    ("LGFedAvg", "shared"): lambda name: LGFedAvg(shared=(name,)),
    ("TrainOnly", "layers"): lambda name: TrainOnly(layers=("head", name)),
    ("FineTuning", "layers"): lambda name: FineTuning(layers=(name,)),
}


@pytest.mark.parametrize("field", NAMED, ids=".".join)
def test_an_unknown_layer_is_refused_before_training(field):
    with pytest.raises(InputError, match=r"'conf1'; did you mean 'conv1'\?.*conv2, fc1"):
        federation.check(BASE.but(methods=(NAMED[field]("conf1"),)))
    federation.check(BASE.but(methods=(NAMED[field]("conv1"),)))
    with pytest.raises(InputError, match="did you mean 'stage2_0.conv1'"):
        federation.check(BASE.but(model=ResNet(), methods=(NAMED[field]("stage2_0.conf1"),)))


def free_text(annotation: object) -> bool:
    """Whether a field's type has a string that can be anything."""
    return annotation is str or any(map(free_text, typing.get_args(annotation))) and (
        typing.get_origin(annotation) is not typing.Literal
    )


def test_every_field_that_takes_names_is_among_them():
    parts = {**published(), **Measure.family}
    fields = {(name, key) for name, part in parts.items() for key, f in part.model_fields.items()
              if free_text(f.annotation)}
    assert fields == set(NAMED)
