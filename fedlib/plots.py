"""Figures of the book: one look, readable on light and dark pages, with alt text, numbers and origin attached.

A figure is shown as inline SVG whose text and axes take the page's own colour. Under it come its caption, the numbers
behind it as a CSV download, and, folded away, where they come from.
"""

from __future__ import annotations

import base64
import html
import io
import os
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import HTML, Markdown, display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedlib.records import COMMAND, LAST, Record
from fedlib.spec import in_words
from fedlib.statistics import Estimate, difference, estimate, geometric

if TYPE_CHECKING:
    from fedlib.sweep import Runs

INK = "#0b0c0e"
"""Stands for the page's text colour; replaced by ``currentColor`` when a figure is shown."""

COLOURS = sns.color_palette("colorblind").as_hex()
"""Distinct to colour-blind readers; lines also differ by marker."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")

STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "when-clients-disagree", "font.family": "sans-serif", "font.size": 11,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none", "legend.frameon": False,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#888888",
    "grid.alpha": 0.25, "lines.linewidth": 1.8, "lines.markersize": 5, "figure.constrained_layout.use": True,
    "figure.constrained_layout.h_pad": 0.1,
}  # fmt: skip


plt.rcParams.update(STYLE)


def new(rows: int = 1, width: float = 5.2, height: float = 3.5) -> tuple[Figure, np.ndarray]:
    """A figure of so many panels, one under the other since a phone is narrow, and its axes, (rows,).

    `width` and `height` of a panel are in inches; the page scales the figure to its own width.
    """
    figure, axes = plt.subplots(rows, 1, figsize=(width, height * rows), squeeze=False)
    return figure, axes[:, 0]


def line(axes: Axes, x: Sequence[float], per_seed: Sequence[Sequence[float]], label: str, index: int) -> pd.DataFrame:
    """Mean over seeds (`per_seed` is (seeds, len(x))) against x, with its 95 % interval as a band; the numbers.

    On a vertical axis that is logarithmic already, the mean is the geometric one and the interval that of the
    logarithms. Whole numbers x, such as rounds, get ticks at whole numbers.
    """
    of = geometric if axes.get_yscale() == "log" else estimate
    estimates = [of(column) for column in np.asarray(per_seed, float).T]
    table = pd.DataFrame([vars(e) for e in estimates]).assign(series=label, x=list(x))
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)] if len(x) <= 40 else None
    axes.plot(x, table["mean"], color=colour, marker=marker, label=label)
    if np.isfinite(table[["low", "high"]].to_numpy()).all():
        axes.fill_between(x, table["low"], table["high"], color=colour, alpha=0.2, linewidth=0)
    if axes.get_xscale() == "linear" and all(isinstance(place, int | np.integer) for place in x):
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    return table[["series", "x", "mean", "low", "high", "n"]]


def legend_above(axes: Axes, columns: int = 2) -> None:
    """The legend over the axes, where it covers no data; over the figure where the axes, its first, have a title.

    In so many columns, or in as many as the figure is wide enough for.
    """
    handles, labels = axes.get_legend_handles_labels()
    points = 30 + 5.4 * max(map(len, labels))  # the line, and the letters of 9 point
    columns = max(1, min(columns, int(72 * axes.figure.get_figwidth() // points)))
    look = {"ncols": columns, "fontsize": 9, "handlelength": 1.6, "columnspacing": 1.2}
    if axes.get_title():
        axes.figure.legend(handles, labels, loc="outside upper left", **look)
    else:
        axes.legend(handles, labels, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.2, **look)


def dots(axes: Axes, estimates: Mapping[str, Estimate], label: str, index: int) -> pd.DataFrame:
    """One row per name, from the bottom up: the mean as a dot and its 95 % interval as a bar; the numbers.

    Called again with the same names and another label and index, the dots of each row stand one above the other.
    """
    table = pd.DataFrame([vars(e) for e in estimates.values()]).assign(series=label, x=list(estimates))
    places = np.arange(len(table)) + 0.16 * index
    ends = np.where(np.isfinite(table[["low", "high"]]), np.abs(table[["low", "high"]].sub(table["mean"], axis=0)), 0)
    colour = COLOURS[index % len(COLOURS)]
    marker = MARKERS[index % len(MARKERS)]
    axes.errorbar(table["mean"], places, xerr=ends.T, fmt=marker, color=colour, capsize=2, label=label)
    axes.set_yticks(np.arange(len(table)), list(estimates))
    if axes.get_xscale() == "linear":
        axes.locator_params("x", nbins=6)  # names to the left leave little room for numbers below
    return table[["series", "x", "mean", "low", "high", "n"]]


def circles(axes: Axes, table: np.ndarray, index: int) -> None:
    """Circles whose area is the number of samples: `table` (columns, classes), a column per client or per round."""
    columns, classes = np.nonzero(table)
    size = table[columns, classes]
    axes.scatter(columns, classes, s=150 * size / table.max(), color=COLOURS[index % len(COLOURS)])
    axes.set(xlim=(-0.7, len(table) - 0.3), ylim=(-0.7, table.shape[1] - 0.3), xticks=range(len(table)))
    axes.set(yticks=range(0, table.shape[1], max(1, table.shape[1] // 5)), ylabel="class")


def images(axes: Axes, images: Sequence[np.ndarray]) -> None:
    """Images (H, W, C) side by side, at the places 0, 1, ... of the horizontal axis."""
    for place, image in enumerate(images):
        shown = image[..., 0] if image.shape[-1] == 1 else image
        axes.imshow(shown, extent=(place - 0.45, place + 0.45, -0.45, 0.45), cmap="gray", vmin=0, vmax=255)
    axes.set(xlim=(-0.7, len(images) - 0.3), ylim=(-0.5, 0.5), xticks=range(len(images)), yticks=[], aspect="equal")
    axes.grid(False)


def show(figure: Figure, alt: str, caption: str, numbers: pd.DataFrame, records: Iterable[Record], name: str) -> None:
    """Display a figure with alt text, caption, its numbers for download as NAME.csv, and its provenance."""
    display(HTML(f"{block(figure, alt, caption, numbers, name)}{provenance(records)}"))


def block(figure: Figure, alt: str, caption: str, numbers: pd.DataFrame, name: str) -> str:
    """The same as HTML, without provenance."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)  # the page decides the size
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(alt, quote=True)}"', 1)
    data = base64.b64encode(numbers.to_csv(index=False).encode()).decode()
    return (
        f'<figure class="result" id="{name}">{svg}<figcaption>{caption} '
        f'<a download="{name}.csv" href="data:text/csv;base64,{data}">Numbers (CSV)</a></figcaption></figure>'
    )


def table(frame: pd.DataFrame, caption: str) -> None:
    """Display a table with its caption; the cells are shown as they are."""
    body = frame.to_html(index=False, border=0, classes="result", escape=True, justify="left")
    display(HTML(f'<div class="scroll">{body.replace(">", f"><caption>{html.escape(caption)}</caption>", 1)}</div>'))


def settling(records: Runs, contrasts: Mapping[str, tuple[Hashable, Hashable, str]]) -> None:
    """Show whether contrasts have settled: how large they are halfway through a run and at its end, and the change.

    A contrast, by its name, is a series of one setting less that of another, paired by seed.
    """
    rows = []
    for words, (one, other, series) in contrasts.items():
        pairs = min(len(records[one]), len(records[other]))
        half, end = (at(one, series)[:pairs] - at(other, series)[:pairs] for at in (records.halfway, records.final))
        moved = difference(end, half)
        spec = "+.3f" if "accuracy" in series else "+.2f"
        told = [e.format(spec) for e in (estimate(half), estimate(end), moved)]
        rows.append((words, *told, moved.says("yes", "yes", "no")))
    tested = [name.removeprefix("test_") for *_, name in contrasts.values() if name.startswith("test_")]
    table(
        pd.DataFrame(rows, columns=["contrast", "halfway", "at the end", "change", "clearly moves"]),
        "Contrasts halfway and at the end, "
        + "".join(f"{name} on the test split, " for name in dict.fromkeys(tested))
        + f"means of the last {LAST} values up to there, 95 % intervals",
    )
    moving = [answer for *_, answer in rows].count("yes")
    display(Markdown(
        f"From halfway to the end **{moving} of these {len(rows)} clearly {'move' if moving > 1 else 'moves'}**."
        if moving else "From halfway to the end none of these clearly moves."
    ))  # fmt: skip


def at_length(records: Iterable[Record], words: str, gradients: float, options: str) -> None:
    """Say what as many runs as `records`, of so many sample gradients each, would take at the pace of these.

    `words` say which length that is, `options` what ``fedlib run`` needs for it; `records` are those of the page's runs
    that these options lengthen.
    """
    records = list(records)
    pace = sum(r.provenance["seconds"] for r in records) / sum(sum(r.values("gradients")) for r in records)
    hours = len(records) * gradients * pace / 3600
    display(Markdown(
        f"**At the paper's length**, {words}, the {len(records)} runs of this page that this command lengthens would "
        f"take about {hours:,.0f} hours of one core by their pace, with the network used here:\n\n"
        f"```bash\nfedlib run {options}\n```"
    ))


def experiments(records: Sequence[Record]) -> str:
    """What was run: the settings that all runs share, and the values of those in which they differ."""
    bodies = [record.experiment for record in records]
    shared, varied = [], []
    for name, field in type(bodies[0]).model_fields.items():
        values = list(dict.fromkeys(in_words(getattr(e, name)) for e in bodies))
        words = name.replace("_", " ")
        if len(values) > 1 and name != "seed":
            varied.append(f"{words}: {', '.join(values)}")
        elif len(values) == 1 and (name == "dataset" or getattr(bodies[0], name) != field.default):
            shared.append(f"{words} {values[0]}")
    parts = [", ".join(shared), *varied]
    return "<br>".join(html.escape(part) for part in parts if part)


def provenance(records: Iterable[Record]) -> str:
    """A folded HTML block that says which runs a figure stands on and how to make them again."""
    records = list(records)
    if not records:
        return ""
    origins = [r.provenance for r in records]

    def all_of(values: Iterable[object]) -> str:
        return html.escape(", ".join(sorted({str(v) for v in values})))

    command = os.environ.get(COMMAND)
    rows = {"Make it again": f"<code>{html.escape(command)}</code>"} if command else {}
    rows |= {
        "Experiments": experiments(records),
        "Runs": f"{len(records)} (seeds {all_of(r.experiment.seed for r in records)})",
        "Records": all_of(r.id for r in records),
        "Data": all_of(f"{r.experiment.dataset} {o['data'][:12]}" for r, o in zip(records, origins, strict=True)),
        "Code": f"numerics {all_of(o['numerics'] for o in origins)}, commit {all_of(o['commit'] for o in origins)}",
        "Versions": all_of(f"{k} {v}" for o in origins for k, v in o["versions"].items()),
        "Made": f"{all_of(o['date'][:10] for o in origins)}, {sum(o['seconds'] for o in origins):.0f} s of one core",
        "Machine": all_of(o["machine"] for o in origins),
    }
    stale = [r.id for r in records if r.stale]
    if stale:
        rows = {"STALE": f"made by an older numerics version: {', '.join(stale)}"} | rows
    lines = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows.items())
    mark = ' <strong class="stale">stale</strong>' if stale else ""
    return f'<details class="provenance"><summary>Where this comes from{mark}</summary><table>{lines}</table></details>'
