"""The method that CONTRIBUTING.md shows works as it stands there, with its test."""

import re
from pathlib import Path

import pytest

from fedlib.methods import Method

GUIDE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()


@pytest.fixture
def shown():
    method, test = re.findall(r"^```python\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    namespace = {}
    exec(method, namespace)
    exec(test, namespace)
    yield namespace
    del Method.family["Proximal"]


def test_the_shown_method_and_its_test(shown):
    assert Method.family["Proximal"] is shown["Proximal"]
    shown["test_proximal_without_weight_is_fedavg"]()
