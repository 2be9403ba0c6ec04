"""Figures carry alt text, numbers and origin, and follow the page's colours."""

import base64
import re

import numpy as np
import pandas as pd
import pytest

from fedlib import plots, records, sweep
from fedlib.experiment import Experiment
from fedlib.records import Record
from fedlib.statistics import Estimate


@pytest.fixture
def shown(monkeypatch):
    pages = []
    monkeypatch.setattr(plots, "display", lambda thing: pages.append(thing.data))
    return pages


def record(**provenance):
    origin = records.provenance(Experiment(), "a" * 64, 12.0, 1, 1) | provenance
    return Record(Experiment(seed=2), {}, origin)


def test_a_figure_is_complete(shown):
    figure, (axes,) = plots.new()
    numbers = plots.line(axes, [1, 2, 3], [[0.1, 0.2, 0.3], [0.2, 0.3, 0.4]], "FedAvg", 0)
    plots.show(figure, 'alt "text"', "A caption.", numbers, [record()], "accuracy")
    (page,) = shown
    assert 'aria-label="alt &quot;text&quot;"' in page and 'role="img"' in page
    assert "currentColor" in page and plots.INK not in page
    assert not re.search(r'<svg[^>]* width=', page)
    csv = base64.b64decode(re.search(r'base64,([^"]+)"', page)[1]).decode()
    assert csv.splitlines()[0] == "series,x,mean,low,high,n"
    assert "seeds 2" in page and "<details" in page and "stale" not in page


def test_the_band_is_the_interval():
    _, (axes,) = plots.new()
    table = plots.line(axes, [1], [[0.1], [0.2], [0.3]], "x", 0)
    assert table["mean"][0] == pytest.approx(0.2)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert np.isclose(band.min(), table["low"][0]) and np.isclose(band.max(), table["high"][0])


def test_on_a_logarithmic_axis_the_band_is_the_interval_of_the_logarithms():
    _, (axes,) = plots.new()
    axes.set_yscale("log")
    table = plots.line(axes, [1, 2], [[0.1, 1.0], [1.0, 1.0], [10.0, 1.0]], "x", 0)
    assert table["mean"].tolist() == pytest.approx([1.0, 1.0])
    assert table["low"][0] > 0 and table["low"][0] * table["high"][0] == pytest.approx(1)


def test_rounds_have_whole_numbers_as_ticks():
    _, axes = plots.new(2)
    plots.line(axes[0], range(1, 5), [[0.1, 0.2, 0.3, 0.4]], "x", 0)
    assert all(tick == round(tick) for tick in axes[0].get_xticks())
    plots.line(axes[1], [0.0, 0.25, 0.5], [[0.1, 0.2, 0.3]], "x", 0)
    assert not all(tick == round(tick) for tick in axes[1].get_xticks())


@pytest.mark.parametrize("title", ["", "global model"])
def test_a_legend_above_covers_no_data(title):
    figure, (axes, _) = plots.new(2)
    for i, name in enumerate(("FedAvg", "FedProx, one class each, rate 0.003", "SCAFFOLD, one class each")):
        plots.line(axes, range(1, 5), [[0.1, 0.9, 0.1, 0.9]], name, i)
    axes.set_title(title)
    plots.legend_above(axes, 3)
    figure.canvas.draw()
    (legend,) = figure.legends or [axes.get_legend()]
    below = axes.title if title else axes
    assert legend.get_window_extent().y0 >= below.get_window_extent().y1
    assert legend.get_window_extent().y1 <= figure.bbox.y1
    assert figure.bbox.x0 <= legend.get_window_extent().x0 and legend.get_window_extent().x1 <= figure.bbox.x1


def test_dots_stand_at_the_mean_between_the_ends_of_the_interval():
    _, (axes,) = plots.new()
    one_seed = Estimate(0.4, -np.inf, np.inf, 1)
    table = plots.dots(axes, {"FedAvg": Estimate(0.5, 0.3, 0.7, 3), "one seed": one_seed}, "x", 0)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FedAvg", "one seed"]
    (bars,) = axes.containers
    assert bars.lines[0].get_xdata().tolist() == [0.5, 0.4]
    ends = [segment[:, 0].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends[0] == pytest.approx([0.3, 0.7]) and ends[1] == [0.4, 0.4], "without an interval no bar"
    assert table["mean"].tolist() == [0.5, 0.4]


def test_the_area_of_a_circle_is_the_number_of_samples():
    _, (axes,) = plots.new()
    plots.circles(axes, np.array([[10, 0], [5, 20]]), 0)
    (circles,) = axes.collections
    assert circles.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert circles.get_sizes() / circles.get_sizes().max() == pytest.approx([0.5, 0.25, 1.0])


def test_images_stand_side_by_side():
    _, (axes,) = plots.new()
    plots.images(axes, [np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4, 3), np.uint8)])
    assert [image.get_extent()[0] for image in axes.images] == [-0.45, 0.55]


def test_a_stale_record_is_marked():
    assert "stale" in plots.provenance([record(numerics=0)])


def test_the_settings_of_runs_are_told_in_words():
    runs = [Record(Experiment(batch_size=size, clients=7), {}, {}) for size in (None, 50)]
    assert plots.experiments(runs) == "dataset digits, clients 7<br>batch size: all, 50"


def test_a_table_shows_its_cells_as_text(shown):
    plots.table(pd.DataFrame({"a": ["<b>1</b>"]}), "caption & more")
    assert "&lt;b&gt;" in shown[0] and "<caption>caption &amp; more</caption>" in shown[0]


def test_a_contrast_that_still_moves_is_marked_and_counted(shown):
    def runs(*of_seeds, series="test_accuracy"):
        return [
            Record(Experiment(seed=seed), {series: {"round": list(range(1, 9)), "value": list(values)}}, {})
            for seed, values in enumerate(of_seeds)
        ]

    rising = runs(*(np.linspace(0.1, 0.8, 8) + 0.01 * seed for seed in range(3)))  # 0.3 at first, 0.7 at the end
    found = sweep.Runs({"rising": rising, "flat": runs(*[[0.2] * 8] * 4), "same": runs(*[[0.3] * 8] * 4)})
    plots.settling(found, {
        "growth": ("rising", "flat", "test_accuracy"), "none": ("same", "flat", "test_accuracy"),
    })  # fmt: skip
    table, text = shown
    assert "+0.110 [" in table and "+0.510 [" in table and "+0.400 [+0.400, +0.400]" in table
    assert re.findall(r">(yes|no)<", table) == ["yes", "no"]
    assert text == "From halfway to the end **1 of these 2 clearly moves**."
    assert "accuracy on the test split, means" in table
    shown.clear()
    plots.settling(found, {"none": ("same", "flat", "test_accuracy")})
    assert shown[1].startswith("From halfway to the end none")
    shown.clear()
    found = sweep.Runs({name: runs(*[[0.3] * 8] * 3, series="survival") for name in ("one", "other")})
    plots.settling(found, {"survival": ("one", "other", "survival")})
    assert "at the end, means of the last" in shown[0] and "test split" not in shown[0]


def test_hours_at_another_length_are_by_the_pace_of_the_runs(shown):
    one = Record(Experiment(), {"gradients": {"round": [1, 2], "value": [500, 700]}}, {"seconds": 12.0})
    plots.at_length([one, one], "3 rounds", 720_000, "chapter -p rounds=3")
    (text,) = shown
    # 12 s for 1,200 gradients: two runs of 720,000 take 14,400 s.
    assert "the 2 runs" in text and "about 4 hours" in text and "fedlib run chapter -p rounds=3" in text
