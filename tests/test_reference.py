"""The reference of methods says of each what its file says, and measures a cost for each that can run alone."""

import pytest

from fedlib import federation, reference
from fedlib.methods import Method, published
from fedlib.records import Record


@pytest.mark.parametrize("name", published())
def test_every_method_is_documented(name):
    entry = reference.entry(Method.family[name])
    assert entry.purpose.endswith((".", ":")) and len(entry.formula) > 100
    assert all(field["meaning"] for field in entry.fields), f"a field of {name} has no docstring"


def test_only_what_needs_company_has_no_cost():
    assert [name for name, e in reference.examples().items() if isinstance(e, str)] == ["PoisonCheck"]


def test_costs_are_the_papers():
    examples = reference.examples()
    records = {}
    for name in ("FedAvg", "SCAFFOLD", "FedProx"):
        run = federation.begin(examples[name])
        list(federation.play(run))
        records[name] = Record(examples[name], run.series, {})
    scaffold, fedprox = (reference.cost(records[name], records["FedAvg"]) for name in ("SCAFFOLD", "FedProx"))
    assert scaffold["bytes up"] == scaffold["bytes down"] == "2.00"  # the control variates, as long as the weights
    assert fedprox == {"bytes up": "1.00", "bytes down": "1.00", "gradients": "1.00", "client state": "0.00"}
