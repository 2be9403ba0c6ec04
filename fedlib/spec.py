"""Specifications: how every part of a run that can be chosen is written down, checked and named.

A specification is a frozen pydantic model. Partitions, models, methods, measures and learning-rate schedules are
specifications; so is the :class:`~fedlib.experiment.Experiment` that holds them. In JSON each part carries its class
name: ``{"name": "FedProx", "mu": 0.01}``. A field that does not exist, a value of the wrong type or out of range, and
an unknown name are all :class:`InputError`, which says what was given, what is allowed and the nearest valid name.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_serializer, model_validator


class InputError(ValueError):
    """What the user asked for cannot be done; the message says what was given and what is allowed."""


def nearest(word: str, choices) -> str:
    """``"; did you mean 'alpha'?"``, or nothing when no choice is close to `word`."""
    match = difflib.get_close_matches(word, [str(c) for c in choices], n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""


def unknown(kind: str, given: str, choices) -> InputError:
    """The error for a name that is not among `choices`."""
    choices = sorted(str(c) for c in choices)
    return InputError(f"unknown {kind} {given!r}{nearest(given, choices)} (allowed: {', '.join(choices) or 'none'})")


class Spec(BaseModel):
    """Base of all specifications.

    A subclass that sets ``family = {}`` starts a family: its subclasses register there under their class name, and
    wherever the family is expected a dictionary with that name is accepted.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    family: ClassVar[dict[str, type[Spec]] | None] = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.family is not None and "family" not in vars(cls):
            cls.family[cls.__name__] = cls

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise InputError(explain(error, type(self))) from None

    @model_validator(mode="wrap")
    @classmethod
    def _by_name(cls, value: Any, handler: Any) -> Self:
        if not isinstance(value, dict):
            return handler(value)
        fields = {key: _tuples(item) for key, item in value.items()}
        if "name" not in fields or cls.family is None:
            return handler(fields)
        name = fields.pop("name")
        if name not in cls.family:
            raise unknown(cls.__name__.lower(), str(name), cls.family)
        return cls.family[name].model_validate(fields)

    @model_serializer(mode="wrap")
    def _with_name(self, handler: Any) -> dict[str, Any]:
        return {"name": type(self).__name__, **handler(self)} if self.family is not None else handler(self)

    def to_dict(self) -> dict[str, Any]:
        """All fields, defaults included, as JSON types."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`; raises :class:`InputError` on anything unknown, missing or out of range."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise InputError(explain(error, cls)) from None

    @property
    def id(self) -> str:
        """Content hash: 16 hex digits over the canonical JSON of all fields that differ from their default.

        Leaving defaults out lets a later version add a field without renaming every record.
        """
        fields = self.model_dump(mode="json", exclude_defaults=True)
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


def brief(part: Spec | dict[str, Any]) -> str:
    """A specification as one would write it, ``FedProx(mu=0.1)``: of an object, without defaults."""
    fields = part.model_dump(mode="json", exclude_defaults=True) if isinstance(part, Spec) else dict(part)
    name = fields.pop("name", None) or type(part).__name__
    given = ", ".join(f"{key}={brief(value) if isinstance(value, dict) else value}" for key, value in fields.items())
    return f"{name}({given})" if given else name


def in_words(value: Any) -> str:
    """One field of an experiment as one would write it."""
    if isinstance(value, tuple):
        return " + ".join(map(in_words, value)) or "none"
    if value is None:
        return "all"  # images, clients or samples: what None stands for in an experiment
    return brief(value) if isinstance(value, Spec) else str(value)


def _tuples(value: Any) -> Any:
    """JSON has lists where the fields are tuples; nothing else is converted."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def explain(error: ValidationError, cls: type[BaseModel]) -> str:
    """One line per fault: the parameter, what was given, what is allowed, the nearest valid name."""
    lines = []
    for fault in error.errors():
        path = ".".join(str(part) for part in fault["loc"]) or cls.__name__
        if fault["type"] == "extra_forbidden":
            allowed = list(cls.model_fields)
            name = str(fault["loc"][-1])
            lines.append(
                f"{cls.__name__} has no parameter {name!r}{nearest(name, allowed)} (allowed: {', '.join(allowed)})"
            )
        elif fault["type"] == "missing":
            lines.append(f"{cls.__name__} needs the parameter {path!r}")
        elif isinstance(fault.get("ctx", {}).get("error"), InputError):
            lines.append(str(fault["ctx"]["error"]))
        else:
            lines.append(f"{cls.__name__}.{path} = {fault['input']!r}: {fault['msg'][0].lower()}{fault['msg'][1:]}")
    return "; ".join(lines)
