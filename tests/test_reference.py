"""The reference of methods says of each what its file says, and measures a cost for each that can run alone."""

import pytest

from fedlib import federation, reference
from fedlib.methods import Method, published
from fedlib.records import Record


@pytest.mark.parametrize("name", [*published(), *reference.parts()])
def test_every_method_and_part_is_documented(name):
    entry = reference.entry((Method.family | reference.parts())[name])
    assert entry.purpose.endswith((".", ":")) and len(entry.formula) > 100
    assert all(field["meaning"] for field in entry.fields), f"a field of {name} has no docstring"


def test_only_what_needs_company_has_no_cost():
    assert [name for name, e in reference.examples().items() if isinstance(e, str)] == ["PoisonCheck"]


def test_costs_are_the_papers():
    examples = reference.examples()
    records = {}
    for name in ("FedAvg", "SCAFFOLD", "FedProx", "DataSharing", "DataSharing, Quantised"):
        run = federation.begin(examples[name])
        list(federation.play(run))
        records[name] = Record(examples[name], run.series, {})
    costs = {name: reference.cost(record, records["FedAvg"]) for name, record in records.items()}
    # The control variates are as long as the weights.
    assert costs["SCAFFOLD"]["bytes up"] == costs["SCAFFOLD"]["bytes down"] == "2.00"
    assert costs["FedProx"] == {
        "bytes up": "1.00", "bytes down": "1.00", "bytes down, first round": "1.00", "gradients": "1.00",
        "client state": "0.00",
    }  # fmt: skip
    # 30 images of 28 x 28 bytes and a label; half of the bits, and the label as before.
    weights = 4 * len(federation.setting(examples["FedAvg"]).w_init)
    for name, size in (("DataSharing", 28 * 28), ("DataSharing, Quantised", 28 * 28 / 2)):
        assert costs[name]["bytes down, first round"] == f"{1 + 30 * (size + 1) / weights:.2f}"
