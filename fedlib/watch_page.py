"""The figures of one run's clients (:mod:`fedlib.watch`), and a page of its own that holds them all.

The page is one file: figures, numbers and style are in it, and it asks for nothing else.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedlib import plots
from fedlib.watch import HALF, LAST, SHAPES, TEN_POINTS, Kind, Sign, Trace, Watched, headline, missing, summary

GREY = "#888888"

STYLES = [style for style in zip(plots.COLOURS, plots.MARKERS, strict=True) if style[0] != plots.COLOURS[7]]
"""Colours and markers of the clients with signs; the palette's grey would be taken for one without."""

MARKED = len(STYLES)
"""Clients that are drawn in a colour of their own at most."""

DRAWN = 40
"""Clients in the picture of accuracies by class at most."""

QUANTITIES = {
    "loss": "training loss",
    "distance": "distance to the global model",
    "update_norm": "norm of the update",
    "cosine": "cosine with the mean update",
    "drift": "lost on what others hold",
    "behind": "served worse than the mean",
    "forgetting": "lost by averaging",
}
"""What :func:`draw` can show over the rounds, and the label of its axis."""

_OF = {"drift": Kind.DRIFT, "behind": Kind.STARVATION, "forgetting": Kind.FORGETTING}


def marked(found: Iterable[Sign]) -> list[int]:
    """Clients with a sign, those with most of them first, at most :data:`MARKED`."""
    found = list(found)
    count = {client: sum(s.client == client for s in found) for client in dict.fromkeys(s.client for s in found)}
    return sorted(count, key=lambda client: -count[client])[:MARKED]


def draw(axes: Axes, trace: Trace, quantity: str, found: Iterable[Sign]) -> pd.DataFrame:
    """One of :data:`QUANTITIES`, a line a client: grey, but for those with a sign, which have a colour; the numbers.

    A quantity that makes a sign has its threshold as a dotted line, and colours only the clients with that sign. The
    cosine has the line of what independent updates would give.
    """
    found = list(found)
    values, styles = getattr(trace, quantity), dict(zip(marked(found), STYLES, strict=False))
    kind = _OF.get(quantity)
    coloured = [k for k in styles if any(s.client == k and kind in (None, s.kind) for s in found)]
    for k, client in enumerate(trace.clients):
        there = np.isfinite(values[:, k])
        style = {"color": GREY, "linewidth": 0.9, "alpha": 0.7}
        if client in coloured:
            colour, marker = styles[client]
            style = {"color": colour, "marker": marker, "markersize": 3, "linewidth": 1.5, "label": f"{client}"}
            style |= {"zorder": 3, "markevery": max(1, len(trace.rounds) // 20)}
        axes.plot(trace.rounds[there], values[there, k], **style)
    if kind:
        axes.axhline(TEN_POINTS, color=plots.INK, linestyle=":", linewidth=1)
    if quantity == "cosine":
        axes.plot(trace.rounds, trace.agreement_by_chance, color=plots.INK, linestyle=":", linewidth=1)
    axes.set(xlabel="communication round", ylabel=QUANTITIES[quantity])
    if quantity in ("loss", "distance", "update_norm"):
        axes.set(ylim=(0, None))
    if coloured:
        axes.legend(
            title="client with a sign", fontsize=8, title_fontsize=8, ncols=5, loc="lower left",
            bbox_to_anchor=(0, 1), borderaxespad=0, alignment="left",
        )  # fmt: skip
    return pd.DataFrame(values, columns=trace.clients).assign(round=trace.rounds).melt(
        "round", var_name="client", value_name=quantity
    )  # fmt: skip


def draw_classes(axes: Axes, trace: Trace, found: Iterable[Sign]) -> pd.DataFrame:
    """Accuracy by client and class after the last measured round's local training, and of the global model made of it.

    A dot marks what a client holds, its area the class's part. Where clients are many, those with signs come first.
    """
    last = np.flatnonzero(np.isfinite(trace.n[-1]))
    first = marked(found)
    shown = sorted(sorted(last, key=lambda k: (trace.clients[k] not in first, k))[:DRAWN], reverse=True)
    table = np.vstack([trace.after[-1], trace.accuracy[-1, shown]])
    picture = axes.pcolormesh(table, cmap="cividis", vmin=0, vmax=1, edgecolors="none")
    for row, k in enumerate(shown, start=1):
        part = trace.held[-1, k] / trace.held[-1, k].sum()
        own = np.flatnonzero(part)
        sizes = 4 + 90 * part[own]
        axes.scatter(own + 0.5, np.full(len(own), row + 0.5), s=sizes, color="white", edgecolor="black", linewidth=0.8)
    axes.axhline(1, color=plots.INK, linewidth=1.5)
    axes.set_yticks(np.arange(len(table)) + 0.5, ["global", *trace.clients[shown]])
    axes.set_xticks(np.arange(table.shape[1]) + 0.5, range(table.shape[1]))
    axes.grid(False)
    axes.set(xlabel="class", ylabel="client", title=f"accuracy, round {trace.rounds[-1]}")
    bar = axes.figure.colorbar(picture, ax=axes, aspect=40, pad=0.02, label="accuracy")
    bar.outline.set_visible(False)
    names = ["global", *map(str, trace.clients[shown])]
    return pd.DataFrame(table, index=pd.Index(names, name="client")).rename_axis(columns="class").stack().rename(
        "accuracy"
    ).reset_index()  # fmt: skip


# ---------------------------------------------------------------- the page


def _over_rounds(trace: Trace, found: list[Sign], quantities: list[str], alt: str, caption: str, name: str) -> str:
    figure, axes = plots.new(rows=len(quantities), height=2.9)
    numbers = [draw(panel, trace, quantity, found) for panel, quantity in zip(axes, quantities, strict=True)]
    table = numbers[0].assign(**{q: n[q] for q, n in zip(quantities[1:], numbers[1:], strict=True)})
    return plots.block(figure, alt, caption, table, name)


def _accuracy(seen: Watched) -> str:
    figure, (axes,) = plots.new(height=2.9)
    tables = []
    for i, name in enumerate(("test_accuracy", "validation_accuracy")):
        if series := seen.series.get(name):
            tables.append(plots.line(axes, series["round"], [series["value"]], name.replace("_", " "), i))
    if not tables:
        return "<p>No round has been evaluated yet.</p>"
    axes.set(xlabel="communication round", ylabel="accuracy of the global model", ylim=(0, 1))
    axes.legend()
    numbers = pd.concat(tables)
    alt = f"Accuracy of the global model over rounds, {numbers['mean'].iloc[-1]:.3f} at the end."
    return plots.block(figure, alt, "Accuracy of the global model.", numbers, "accuracy")


def figures(seen: Watched) -> list[str]:
    """All figures of a run as HTML."""
    blocks = [_accuracy(seen)]
    trace = Trace.of(seen.series)
    if trace is None:
        return blocks
    found = summary(seen)[0]
    n, said = len(trace.clients), "; ".join(f"client {s.client} {s.kind}" for s in found[:MARKED]) or "no signs"
    over = [
        (["loss"], "Loss of each client over the samples it trained on.", "losses"),
        (["distance"], "How far local training moved each client from the global model.", "distances"),
        (["update_norm", "cosine"], "Above, the norm of each client's update; below, its cosine with the mean update. "
         "Dotted: what independent updates of one length would have.", "updates"),
    ]  # fmt: skip
    for quantities, caption, name in over:
        alt = f"{caption} {n} clients, rounds {trace.rounds[0]} to {trace.rounds[-1]}. Signs: {said}."
        blocks.append(_over_rounds(trace, found, quantities, alt, caption, name))
    figure, (axes,) = plots.new(height=min(n, DRAWN) * 0.24 + 1.3)
    numbers = draw_classes(axes, trace, found)
    alt = f"Accuracy of each client's model by class in round {trace.rounds[-1]}; the global model in the lowest row."
    caption = "Accuracy of each client's model on test images of each class. Dots: what the client trained on."
    blocks.append(plots.block(figure, alt, caption, numbers, "classes"))
    caption = (
        f"What makes the signs: drift, starvation (only for clients below {HALF:g} of an equal share) and forgetting. "
        f"Dotted: {TEN_POINTS:g}; a sign is a mean above it over a client's last {LAST} measured rounds."
    )
    blocks.append(_over_rounds(trace, found, list(_OF), f"{caption} Found: {said}.", caption, "signs"))
    return blocks


STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #16181d; --line: #c9ccd3; }
@media (prefers-color-scheme: dark) { :root { --ground: #14181e; --ink: #e8eaee; --line: #454b57; } }
body { margin: 0 auto; max-width: 46rem; padding: 1rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
p, td, code { overflow-wrap: anywhere; } th { white-space: nowrap; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.2rem; margin-top: 2rem; } a { color: inherit; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; height: auto; } figcaption { font-size: 0.95em; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
.sign { white-space: nowrap; font-weight: 600; } details { font-size: 0.9em; } code { font-size: 0.95em; }
"""


def page(seen: Watched) -> str:
    """A run as an HTML page of one file."""
    found, words = summary(seen)
    rows = "".join(
        f'<tr><td class="sign"><span aria-hidden="true">{SHAPES[sign.kind]}</span> {sign.kind}</td>'
        f"<td>{sign.client}</td><td>{html.escape(sign.words)}</td></tr>" for sign in found
    )  # fmt: skip
    table = (
        '<div class="scroll"><table><thead><tr><th scope="col">sign</th><th scope="col">client</th>'
        f'<th scope="col">what it shows</th></tr></thead><tbody>{rows}</tbody></table></div>' if rows else ""
    )  # fmt: skip
    note = f"<p>{html.escape(missing(seen))}</p>" if missing(seen) else ""
    origin = plots.provenance([seen.record]) if seen.record else ""
    e = seen.experiment
    standing = seen.standing[0].upper() + seen.standing[1:]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>Run {e.id}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Run {e.id}</h1><p>{html.escape(standing)}. What was run: {html.escape(headline(seen))}.</p>"
        f"<h2>Signs</h2><p><strong>{html.escape(words)}</strong></p>{table}{note}"
        f"<h2>The run</h2>{''.join(figures(seen))}{origin}</main></body></html>\n"
    )
