"""The command line: what a reader types, what he is told, and the exit code that scripts see."""

import json
import os
import resource
import subprocess
import sys

import nbformat
import pytest
from small_chapter import PARAMETERS, RESULT, RUNS, write_chapter
from typer.testing import CliRunner

from fedlib import chapters, sweep
from fedlib.cli import app
from fedlib.experiment import Experiment
from fedlib.models import Linear
from fedlib.records import StorageError, Store
from fedlib.site import SiteError

TINY = Experiment(train_images=100, clients=2, rounds=2, batch_size=25, model=Linear())


def fedlib(*words):
    return CliRunner().invoke(app, words)


def command(*words, **options):
    return subprocess.run([sys.executable, "-m", "fedlib", *words], capture_output=True, text=True, **options)


@pytest.fixture
def no_kernel(monkeypatch):
    def start(job):
        raise AssertionError("a kernel would have been started")

    monkeypatch.setattr(chapters, "execute", start)


@pytest.mark.parametrize(
    "words, message",
    [
        (["smal"], "unknown chapter 'smal'; did you mean 'small'? (allowed: small)"),
        ([], "name one chapter, or give --all (allowed: small)"),
        (["small", "--all"], "name one chapter, or give --all"),
        (["small", "-p", "alpha=0.1"], "unknown parameter 'alpha'; did you mean 'alphas'? (allowed: alphas, "),
        (["small", "-p", "alphas=[0]"], "parameter alphas[0] = 0: input should be greater than 0"),
        (["small", "-p", "rounds=many"], "parameter rounds = 'many'"),
        (["small", "-p", "rounds"], "-p 'rounds' (allowed: name=value)"),
        (["small", "-p", "rounds=3", "-p", "rounds=4"], "rounds is given twice"),
        (["small", "--edition", "digit"], "unknown edition 'digit'; did you mean 'digits'"),
        (["--all", "--edition", "digit"], "unknown edition 'digit'; did you mean 'digits'"),
        (["--all", "-p", "rounds=3"], "-p and --output go with one chapter"),
        (["small", "--jobs", "0"], "--jobs 0 (allowed: at least 1)"),
    ],
)
def test_bad_input_is_refused_before_a_kernel_starts(checkout, no_kernel, words, message):
    before = sorted(checkout.rglob("*"))
    result = fedlib("run", *words)
    assert result.exit_code == 2
    assert result.stderr.startswith("fedlib: ") and result.stderr.count("\n") == 1
    assert message in result.stderr
    assert result.stdout == ""
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "error, code",
    [(chapters.ChapterError("x"), 1), (StorageError("x"), 1), (SiteError("x"), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(checkout, monkeypatch, error, code):
    def fail(job):
        raise error

    monkeypatch.setattr(chapters, "execute", fail)
    result = fedlib("run", "small")
    assert result.exit_code == code and result.stderr.startswith("fedlib: ")


def test_a_fault_of_the_program_keeps_its_traceback(checkout, monkeypatch):
    monkeypatch.setattr(chapters, "execute", lambda job: 1 / 0)
    assert isinstance(fedlib("run", "small").exception, ZeroDivisionError)


def test_all_goes_on_after_a_failure_and_reports_it(checkout, monkeypatch):
    write_chapter(checkout, "other")
    (checkout / "notebooks" / "editions.yml").write_text("small: {digits: {}, cifar10: {}}\nother: {digits: {}}\n")
    tried = []

    def execute(job):
        tried.append((job.chapter.name, job.edition))
        if job.chapter.name == "other":
            raise chapters.ChapterError("chapter other, cell 3")

    monkeypatch.setattr(chapters, "execute", execute)
    monkeypatch.setenv("FEDLIB_WORKERS", "1")
    result = fedlib("run", "--all")
    assert tried == [("other", "digits"), ("small", "digits"), ("small", "cifar10")]
    assert result.exit_code == 1 and "chapter other, cell 3" in result.stderr
    tried.clear()
    fedlib("run", "--all", "--edition", "cifar10")
    assert tried == [("small", "cifar10")]


def test_chapters_and_their_parameters_are_listed(checkout):
    assert "small" in (listed := fedlib("chapters").stdout) and "digits, cifar10" in listed
    shown = fedlib("chapters", "small").stdout
    (rounds,) = [line.split("  ") for line in shown.splitlines() if line.strip().startswith("rounds")]
    cells = [cell.strip() for cell in rounds if cell.strip()]
    assert cells == ["rounds", "whole number from 1 to 100,000", "2", "30", "communication rounds"]
    assert fedlib("chapters", "smal").exit_code == 2


def test_records_are_listed_and_shown(checkout):
    assert fedlib("records").exit_code == 0
    first, second = sweep.sweep([TINY, TINY.but(seed=1)], processes=1)
    listed = fedlib("records").stdout
    assert first.id in listed and second.id in listed and f"{first.last('test_accuracy'):.4g}" in listed
    table = {row["id"]: row for row in json.loads(fedlib("records", "--json").stdout)}
    assert table[second.id]["seed"] == 1 and table[first.id]["where"] == "cache" and not table[first.id]["stale"]

    shown = fedlib("records", first.id[:6]).stdout
    assert "test_loss" in shown and first.provenance["data"] in shown and "Linear" in shown
    assert json.loads(fedlib("records", first.id, "--json").stdout) == json.loads(first.path.read_text())
    assert fedlib("records", "x").exit_code == 2


def test_a_damaged_record_is_named_and_the_others_are_listed(checkout):
    first, second = sweep.sweep([TINY, TINY.but(seed=1)], processes=1)
    first.path.write_text(first.path.read_text()[:100])
    result = fedlib("records")
    assert result.exit_code == 1
    assert second.id in result.stdout
    assert f"{first.id}.json is damaged" in result.stderr


def test_methods_are_listed_and_shown():
    assert "FedAvg" in fedlib("methods").stdout
    assert "fedlib/methods/fedavg.py" in fedlib("methods", "FedAvg").stdout
    scaffold = fedlib("methods", "SCAFFOLD").stdout
    assert "Algorithm 1" in scaffold and "y <- y - eta_l (g_i(y) - c_i + c)" in scaffold and "eta_g" in scaffold
    assert "ByEMD" in fedlib("methods").stdout and "thresholds" in fedlib("methods", "ByEMD").stdout
    result = fedlib("methods", "FedAgv")
    assert result.exit_code == 2 and "did you mean 'FedAvg'" in result.stderr


HELP = """
import sys
from fedlib import cli

sys.argv = ["fedlib", "--help"]
try:
    cli.main()
except SystemExit:
    assert not {"torch", "pandas", "papermill"} & sys.modules.keys()
"""


def test_help_comes_at_once_and_without_torch():
    """Less than half a second of processor time, whatever else this machine does."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "chapters" in shown.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


# ---------------------------------------------------------------- with real kernels


def test_a_chapter_is_executed_once_then_up_to_date(checkout):
    page = checkout / "book" / "chapters" / "small-digits.ipynb"
    first = command("run", "small")
    assert first.returncode == 0, first.stderr
    assert "small (digits): 2 of 2 runs" in first.stderr and str(page.relative_to(checkout)) in first.stdout
    made = nbformat.read(page, 4)
    source = nbformat.read("notebooks/small.ipynb", 4)
    assert [cell.source for cell in made.cells] == [cell.source for cell in source.cells]
    accuracies = [record.last("test_accuracy") for record in Store().records()]
    assert sorted(json.loads(made.cells[-1].outputs[0]["data"]["text/plain"])) == pytest.approx(sorted(accuracies))
    assert set(made.metadata.fedlib.records) == {record.id for record in Store().records()}
    assert made.metadata.fedlib.parameters == chapters.read("small").defaults
    assert str(checkout) not in page.read_text(), "the page names no path of this machine"

    content = page.read_bytes()
    second = command("run", "--all", "--edition", "digits")
    assert second.returncode == 0 and "up to date" in second.stdout and page.read_bytes() == content

    # A cell that fails: nothing is replaced, and the message says where.
    write_chapter(checkout, "small", PARAMETERS, RUNS, "\n\n# the result\nrecords[7]", RESULT)
    failed = command("run", "small")
    assert failed.returncode == 1
    assert "chapter small (digits), cell 4 (# the result): IndexError: list index out of range" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert page.read_bytes() == content
    left = nbformat.read(checkout / ".fedlib" / "failed" / "small-digits.ipynb", 4)
    assert any(output.output_type == "error" for cell in left.cells for output in cell.get("outputs", ()))


def test_two_chapters_are_executed_side_by_side(checkout):
    write_chapter(checkout, "other", PARAMETERS, RUNS, "records[7]")
    write_chapter(checkout, "third", PARAMETERS, RUNS, "import os\nos.environ['FEDLIB_WORKERS']")
    editions = "small: {digits: {rounds: 3}}\nother: {digits: {}}\nthird: {digits: {}}\n"
    (checkout / "notebooks" / "editions.yml").write_text(editions)
    result = command("run", "--all", "--jobs", "4")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert "chapter other (digits), cell 4 (records[7]): IndexError" in result.stderr
    small, third = (nbformat.read(f"book/chapters/{name}-digits.ipynb", 4) for name in ("small", "third"))
    assert len(small.metadata.fedlib.records) == len(third.metadata.fedlib.records) == 2
    assert third.cells[-1].outputs[0]["data"]["text/plain"] == "'2'"  # half of the processes that train
    assert len(list(Store().records())) == 4, "the runs that two chapters share are trained once"
    with pytest.raises(FileNotFoundError):
        nbformat.read("book/chapters/other-digits.ipynb", 4)


def test_plain_papermill_and_an_output_of_ones_own(checkout):
    """The same notebook through papermill alone gives the same numbers as through `fedlib run -p`."""
    words = ["-p", "rounds", "3", "-y", "alphas: [0.5]"]
    papermill = [sys.executable, "-m", "papermill", "notebooks/small.ipynb", "plain.ipynb", "--no-progress-bar", *words]
    subprocess.run(papermill, check=True, capture_output=True, env=os.environ | {"FEDLIB_WORKERS": "1"})
    ran = command("run", "small", "-p", "rounds=3", "-p", "alphas=[.5]", "--output", "mine/own.ipynb", "--jobs", "1")
    assert ran.returncode == 0, ran.stderr
    plain, own = (nbformat.read(path, 4).cells[-1].outputs for path in ("plain.ipynb", "mine/own.ipynb"))
    assert plain[0]["data"] == own[0]["data"]
    assert len(list(Store().records())) == 1
    assert not (checkout / "book").exists()


def test_where_nothing_can_be_written_nothing_is_trained(checkout):
    (checkout / "executed").write_text("a file where the folder would be")
    result = command("run", "small", "-p", "rounds=3")
    assert result.returncode == 1
    assert "cannot write to " in result.stderr and "executed" in result.stderr and "Traceback" not in result.stderr
    assert not list(Store().files())
