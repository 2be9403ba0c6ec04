"""Chapters: parameters are what the cell says and nothing else, and a page is made anew exactly when it must be."""

import json
from pathlib import Path
from typing import get_args

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_chapter import PARAMETERS, write_chapter

from fedlib import chapters, datasets, parameters, progress
from fedlib.spec import InputError


def test_a_chapter_says_what_can_be_changed(checkout):
    chapter = chapters.read("small")
    assert chapter.title == "A small federation"
    assert chapter.defaults == {"edition": "digits", "rounds": 2, "lr": 0.05, "alphas": [0.5, 5.0]}
    shown = {p.name: (p.allowed, p.help) for p in chapter.parameters.values()}
    assert shown["rounds"] == ("whole number from 1 to 100,000", "communication rounds")
    assert shown["lr"] == ("number above 0 and at most 100", "local learning rate")
    assert shown["edition"] == ("one of 'digits', 'cifar10'", "which edition")
    assert shown["alphas"][0] == "list of 1 to 50: number above 0"


@pytest.mark.parametrize(
    "cell, message",
    [
        ("n: Count = 2", "parameter n has no comment"),
        ("n = 2  # a number", "the parameter cell has 'n = 2  # a number'"),
        ("n: Count  # a number", "the parameter cell has 'n: Count  # a number'"),
        ("n: Cuont = 2  # a number", "parameter n: fedlib.parameters has no type 'Cuont'; did you mean 'Count'"),
        ("n: Count = 1 + m  # a number", r"parameter n = 1 \+ m \(allowed: a plain value"),
        ("n: Count = 0  # a number", r"parameter n = 0: .*equal to 1 \(allowed: whole number at least 1\)"),
        ("n: Count = 2.0  # a number", "parameter n = 2.0: input should be a valid integer"),
        ("n: Count = 2  # a number\nm: Count = 1  # another", "parameter m is declared, but no cell reads it"),
        ("n: Count =  # a number", "the parameter cell is not Python"),
        ("for n in range(3): pass", "the parameter cell has 'for n in range"),
        ([], "0 cells are tagged"),
        (["n: Count = 2  # a number"] * 2, "2 cells are tagged"),
    ],
)
def test_a_parameter_cell_that_is_not_as_it_must_be(checkout, cell, message):
    write_chapter(checkout, "small", cell, "print(n)")
    with pytest.raises(InputError, match=f"chapter small: {message}"):
        chapters.read("small")


def test_types_can_be_written_in_the_cell_and_lines_may_be_long(checkout):
    cell = """\
from typing import Annotated, Literal

n: Annotated[int, Field(ge=2, le=8)] = 4  # an even number
kind: Literal["a", "b"] = "a"  # which
many: Alphas = [
    0.1,
    1.0,
]  # several lines
maybe: Count | None = None  # none: all
"""
    write_chapter(checkout, "small", cell, "%matplotlib inline\nprint(f'{n} {kind}', many, maybe)")
    chapter = chapters.read("small")
    assert [p.help for p in chapter.parameters.values()] == ["an even number", "which", "several lines", "none: all"]
    assert chapter.parameters["maybe"].allowed == "whole number at least 1 or null"
    assert chapter.check({"maybe": 3, "kind": "b"}) == {"maybe": 3, "kind": "b"}
    with pytest.raises(InputError, match="parameter n = 9"):
        chapter.check({"n": 9})


def test_a_parameter_that_is_only_written_is_not_read(checkout):
    write_chapter(checkout, "small", "n: Count = 2  # a number", "n = 5")
    with pytest.raises(InputError, match="no cell reads it"):
        chapters.read("small")


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"cells": 3}', "not JSON"])
def test_a_file_that_is_no_notebook(checkout, content):
    (checkout / "notebooks" / "small.ipynb").write_text(content)
    with pytest.raises(InputError, match="chapter small: "):
        chapters.read("small")


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("alpha", 1, "unknown parameter 'alpha'; did you mean 'alphas'.*allowed: alphas, edition, lr, rounds"),
        ("rounds", 0, "parameter rounds = 0: .*allowed: whole number from 1 to 100,000"),
        ("rounds", 2.5, "parameter rounds = 2.5: .*integer"),
        ("rounds", "2", "parameter rounds = '2'"),
        ("rounds", True, "parameter rounds = True"),
        ("rounds", None, "parameter rounds = None"),
        ("lr", float("nan"), "parameter lr = nan: .*finite"),
        ("lr", float("inf"), "parameter lr = inf"),
        ("lr", True, "parameter lr = True"),
        ("alphas", 0.1, "parameter alphas = 0.1: .*allowed: list"),
        ("alphas", [], r"parameter alphas = \[\]"),
        ("alphas", [0.1, 0], r"parameter alphas\[1\] = 0: .*greater than 0"),
        ("alphas", [0.1, -1], r"parameter alphas\[1\] = -1: .*greater than 0"),
        ("edition", "cifr10", "did you mean 'cifar10'"),
    ],
)
def test_a_value_that_does_not_fit_is_named(checkout, name, value, message):
    with pytest.raises(InputError, match=f"chapter small: .*{message}"):
        chapters.plan("small", given={name: value})


def test_names_of_data_sets_models_and_methods(checkout):
    cell = "d: DatasetName = 'digits'  # a\nm: ModelName = 'CNN'  # b\nf: MethodNames = ['FedAvg']  # c"
    write_chapter(checkout, "small", cell, "print(d, m, f)")
    chapter = chapters.read("small")
    assert all(name in chapter.parameters["d"].allowed for name in datasets.names())
    with pytest.raises(InputError, match="parameter d = 'cifar': unknown data set 'cifar'; did you mean 'cifar10'"):
        chapter.check({"d": "cifar"})
    with pytest.raises(InputError, match="unknown model 'CNM'; did you mean 'CNN'"):
        chapter.check({"m": "CNM"})
    with pytest.raises(InputError, match=r"parameter f\[1\] = 'FedAgv': unknown method"):
        chapter.check({"f": ["FedAvg", "FedAgv"]})


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists, max_leaves=5
)


@given(plain)
def test_json_on_the_command_line_is_taken_as_it_is(value):
    assert chapters.parse(f"x={json.dumps(value)}") == ("x", value)


@pytest.mark.parametrize(
    "text, value",
    [
        ("1e-3", 0.001), (".1", 0.1), ("5", 5), ("[.1, 1]", [0.1, 1]), ("[iid, two words]", ["iid", "two words"]),
        ("no", "no"), ("cifar10", "cifar10"), ("True", True), ("None", None), ("", ""), ("a=b", "a=b"),
        ("12:30", "12:30"),
    ],
)  # fmt: skip
def test_what_is_not_json_on_the_command_line(text, value):
    assert chapters.parse(f"x={text}") == ("x", value)
    assert type(chapters.parse(f"x={text}")[1]) is type(value)


@pytest.mark.parametrize("text", ["x", "=3", "1x=3", "x=[1", "x={a: b: c}"])
def test_what_is_no_assignment(text):
    with pytest.raises(InputError, match="-p "):
        chapters.parse(text)


@given(st.integers())
def test_a_range_holds_for_every_number(n):
    rounds = chapters.Parameter("rounds", parameters.Rounds, 1, "")
    if 1 <= n <= 100_000:
        assert rounds.check(n) == n
    else:
        with pytest.raises(InputError, match=f"rounds = {n}"):
            rounds.check(n)


# ---------------------------------------------------------------- editions


@pytest.mark.parametrize(
    "table, message",
    [
        ("smal: {digits: {}}", "unknown chapter 'smal'; did you mean 'small'"),
        ("{}", "no entry for chapter small"),
        ("small: {digit: {}}", "unknown edition 'digit'; did you mean 'digits'"),
        ("small: {digits: {round: 3}}", "edition digits: .*unknown parameter 'round'; did you mean 'rounds'"),
        ("small: {digits: {rounds: 0}}", "edition digits: .*rounds = 0"),
        ("small: {digits: {edition: cifar10}}", "parameter edition = 'cifar10'"),
        ("small: {digits: 3}", "edition digits: 3"),
        ("small: [digits]", "wrong shape"),
        ("small: {digits: {}", "not YAML"),
    ],
)
def test_a_table_of_editions_that_does_not_fit(checkout, table, message):
    (checkout / "notebooks" / "editions.yml").write_text(table)
    with pytest.raises(InputError, match=f"editions.yml.*{message}"):
        chapters.plan("small")


def test_an_edition_is_the_cell_with_some_values_changed(checkout):
    digits, cifar10 = (chapters.plan("small", edition) for edition in ("digits", "cifar10"))
    assert digits.parameters == chapters.read("small").defaults
    assert cifar10.parameters == digits.parameters | {"edition": "cifar10", "rounds": 30}


def test_unknown_chapter_and_edition(checkout):
    with pytest.raises(InputError, match="unknown chapter 'smal'; did you mean 'small'"):
        chapters.plan("smal")
    with pytest.raises(InputError, match="unknown edition 'digts'; did you mean 'digits'"):
        chapters.plan("small", "digts")
    (checkout / "notebooks" / "editions.yml").write_text("small: {digits: {}}")
    with pytest.raises(InputError, match=r"unknown edition 'cifar10' \(allowed: digits\)"):
        chapters.plan("small", "cifar10")


def test_only_an_unchanged_edition_is_a_page_of_the_book(checkout):
    page = checkout / "book" / "chapters" / "small-digits.ipynb"
    assert chapters.plan("small").output == page
    assert chapters.plan("small", given={"rounds": 2}).output == page
    changed = {chapters.plan("small", given={"rounds": n}).output for n in (3, 4)}
    assert len(changed) == 2 and all(path.parent == checkout / "executed" for path in changed)
    assert chapters.plan("small", output=checkout / "x.ipynb").output == checkout / "x.ipynb"


# ---------------------------------------------------------------- up to date or not


@pytest.fixture
def executed(checkout):
    """What an execution leaves that used one record."""
    record = checkout / ".fedlib" / "records" / "digits" / "abc.json"
    record.parent.mkdir(parents=True)
    record.write_text("a record")
    chapters._code.cache_clear()
    job = chapters.plan("small")
    job.output.parent.mkdir(parents=True)
    used = {"abc": {"file": ".fedlib/records/digits/abc.json", "sha256": progress.file_digest(record)}}
    notebook = nbformat.read(job.chapter.path, 4)
    notebook.metadata["fedlib"] = {"stamp": job.stamp, "records": used}
    nbformat.write(notebook, job.output)
    yield job.output
    chapters._code.cache_clear()


def up_to_date(**changes):
    chapters._code.cache_clear()
    return chapters.plan("small", **changes).up_to_date


def test_nothing_changed(executed):
    assert up_to_date()


@pytest.mark.parametrize(
    "path, content",
    [
        (".fedlib/records/digits/abc.json", "another record"),
        (".fedlib/records/digits/abc.json", None),
        ("data/claims/claims.yml", "a claim"),
        ("notebooks/editions.yml", "small: {digits: {rounds: 3}}"),
        ("book/chapters/small-digits.ipynb", None),
        ("book/chapters/small-digits.ipynb", "{"),
        ("book/chapters/small-digits.ipynb", "[]"),
    ],
)
def test_what_a_page_is_made_from_changed(executed, checkout, path, content):
    if content is None:
        (checkout / path).unlink()
    else:
        (checkout / path).write_text(content)
    assert not up_to_date(output=executed)


def test_the_source_changed(executed, checkout):
    write_chapter(checkout, "small", PARAMETERS.replace("rounds\n", "rounds of communication\n"))
    assert not up_to_date()


def test_the_library_changed(executed, tmp_path, monkeypatch):
    library = tmp_path / "library" / "fedlib"
    library.mkdir(parents=True)
    monkeypatch.setattr(chapters, "__file__", str(library / "chapters.py"))
    assert not up_to_date()


# ---------------------------------------------------------------- the project's own chapters


REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", sorted(p.stem for p in (REPOSITORY / "notebooks").glob("*.ipynb")))
def test_each_chapter_is_valid_in_all_its_editions_and_kept_without_outputs(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    chapter = chapters.read(name)
    own = chapters.editions_of(chapter)
    assert set(own) <= set(get_args(parameters.Edition)) and "digits" in own
    for edition in own:
        assert chapters.plan(name, edition).parameters.keys() == chapter.parameters.keys()
    for cell in nbformat.read(chapter.path, 4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert cell.cell_type == "markdown" or "hide-input" in cell.metadata.get("tags", ()), "a page opens with words"
