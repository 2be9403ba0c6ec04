"""Types for a chapter's parameters: each name says what is meant and in which range.

A chapter's cell tagged `parameters` declares with them what a reader may change::

    from fedlib.parameters import Alphas, Rounds

    rounds: Rounds = 30  # communication rounds
    alphas: Alphas = [0.1, 1.0]  # concentrations of the Dirichlet partition

`fedlib run` reads the cell without executing it and refuses anything else, see :mod:`fedlib.chapters`. For a range that
no name here has, ``Annotated[int, Field(ge=2, le=8)]`` and ``Literal["a", "b"]`` can be written in the cell as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from fedlib.spec import unknown


@dataclass(frozen=True)
class OneOf:
    """Annotation of a name that must be among `choices()`, which is asked when a value is checked, not before."""

    kind: str
    choices: Callable[[], list[str]]

    def _check(self, value: str) -> str:
        if value not in self.choices():
            raise unknown(self.kind, value, self.choices())
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": self.choices()}


def _datasets() -> list[str]:
    from fedlib import datasets

    return datasets.names()


def _models() -> list[str]:
    from fedlib import models

    return sorted(models.Model.family)


def _methods() -> list[str]:
    from fedlib import methods

    return sorted(methods.Method.family)


Edition = Literal["digits", "cifar10"]
"""Which of the two editions of a chapter. `fedlib run` sets it to the edition that is run."""
DatasetName = Annotated[str, OneOf("data set", _datasets)]
ModelName = Annotated[str, OneOf("model", _models)]
MethodName = Annotated[str, OneOf("method", _methods)]
MethodNames = Annotated[list[MethodName], Field(min_length=1, max_length=20)]
Precision = Literal["fp32", "bf16"]

Rounds = Annotated[int, Field(ge=1, le=100_000)]
"""Communication rounds, T."""
Seeds = Annotated[int, Field(ge=1, le=100)]
"""Number of seeds; the runs have the seeds 0 to Seeds - 1."""
Clients = Annotated[int, Field(ge=1, le=100_000)]
"""Clients in total or per round."""
Epochs = Annotated[int, Field(ge=1, le=1_000)]
"""Local epochs, E."""
BatchSize = Annotated[int, Field(ge=1, le=100_000)]
"""Local batch size, B."""
Classes = Annotated[int, Field(ge=1, le=1_000)]
"""Classes per client."""
Widths = Annotated[list[Annotated[int, Field(ge=1, le=4_096)]], Field(min_length=1, max_length=20)]
"""Channels of a network's convolutions, or units of its dense layers, layer by layer."""
Count = Annotated[int, Field(ge=1)]
"""Any other number of things."""

Rate = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]
"""Learning rate, eta."""
Decay = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
"""Factor by which the rate falls per round."""
Momentum = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Strength = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""Weight of a penalty: weight decay, mu of FedProx, beta of FedDecorr."""
Alpha = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""Concentration of a Dirichlet distribution."""
Alphas = Annotated[list[Alpha], Field(min_length=1, max_length=50)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Fractions = Annotated[list[Fraction], Field(min_length=1, max_length=50)]
Emd = Annotated[float, Field(ge=0, lt=2, allow_inf_nan=False)]
"""L1 distance of two label distributions, the EMD of Zhao et al. 2018."""
Emds = Annotated[list[Emd], Field(min_length=1, max_length=50)]
