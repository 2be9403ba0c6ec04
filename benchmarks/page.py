"""The book's page on speed, ``book/speed.md``: written from ``benchmarks/latest.json`` and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from benchmarks.turn import ROOT
from fedlib import plots
from fedlib.statistics import estimate

PAGE = ROOT / "book" / "speed.md"
LATEST = ROOT / "benchmarks" / "latest.json"

TEXT = """# What it costs

Every number on this page comes from `benchmarks/latest.json`, which `make bench` writes together with the page:
measured on {date} on {machine}, {cores} cores, at commit {commit}, with {versions}. The load average before the
{repetitions} repetitions was {load}{busy}.

## Beside others

One workload for all: 100 clients with 500 images of CIFAR-10's shape each, 10 clients a round, 1 epoch in batches of
32, SGD with rate 0.05, updates weighted by samples. The network has two 3x3 convolutions (32, 64), each with
max-pooling, and a dense layer of 128. The images are random, since no contender's speed depends on what they show.
Nothing is evaluated.

Each contender gets the same {cores} cores, whichever way it uses them best: fedlib, Flower and pfl-research as {cores}
processes of one thread, plain PyTorch as one process of {cores} threads. A contender starts, trains a round that does
not count and then {rounds} that do; then it is the next one's turn, and after the last the first one's again,
{repetitions} times. What is shown is the median, and a ratio is the median of the ratios within a repetition. Peak
memory is that of all processes of a contender, with shared pages counted once, from one more turn.

{table}

"Index batches" leaves out PyTorch's DataLoader and indexes a client's tensors. The fastest peer is the fastest in fp32.
The bare loop is the limit: fedlib's network and all its tricks in the shortest loop that trains, {cores} processes that
never talk to each other, without clients, server, methods or records. What fedlib reaches of it is told best by rounds
in turn within one program, one of fedlib and one of the bare loop, either first every second time. It depends on the
processor: what federation costs takes about the same time whether training is fast or slow.

{to_limit}

Means of the ratios of speed, 95 % t intervals. The clients of a round wait for the last of them, which the bare loop
does not; in the last two columns it waits after each round, too.{turns}

A round of fedlib in which no client trains a step takes {overhead:.1f} ms: that is selection, sending weights and
updates, aggregation and bookkeeping, {fp32:.1%} of a round in fp32 and {bf16:.1%} in bf16.

From the launch of Python to the end of the first batch, the data cached: {start}.

## What makes it fast

- **Memory is kept.** With glibc's defaults small-batch training maps and unmaps the same megabytes for each batch
  (`fedlib.allocator`).
- **One process per core with one thread each**, on a pool that stays. It is faster than threads, and the reason why
  results do not depend on how many workers there are (`fedlib.workers`).
- **No core waits for the start.** A pool of processes needs more than a second to import torch; until it answers, the
  first process trains (`fedlib.workers`).
- **Images stay channels-last** to the last layer (`fedlib.models`), and are normalised in whole rows (`fedlib.local`).
- **bfloat16** copies of the weights for forward and backward passes, fp32 weights and updates. A processor that has no
  fast units for bfloat16 is slower with it than with fp32, which an experiment's `precision` can name instead.
- **Large dense layers go to oneDNN** in fp32, where PyTorch asks MKL, the slower of the two on this processor
  (`fedlib.layers`).
- **Batches by index** from images that all processes map into memory once.
- **A running mean** of the updates, so that client models never pile up (`fedlib.federation`).
- **Weights and updates are never sent**: all processes have the same memory mapped, and a task names its place in it
  (`fedlib.workers`).
- **Evaluations only take maxima**: PyTorch's pooling also notes where each one stood, for gradients that nobody asks
  for (`fedlib.layers`).
- **Plain SGD steps layer by layer**; gradients come into one vector only where a method looks at them (`fedlib.local`).

On a GPU a round's clients can train together (`fedlib.batched`, `FEDLIB_DEVICE=cuda`). No GPU was to be had: that it
gives the same numbers is tested on the CPU, and its speed is unmeasured.

## How cost grows

The workload above in fp32 with one quantity changed at a time. Clients in total: 60,000 images of 28x28, of which each
client draws 50, 10 clients a round, batches of 5. Measured at commit {growth_commit}.

{figures}
"""


def write(body: dict[str, Any]) -> None:
    """Store what was measured, and the page."""
    LATEST.write_text(json.dumps(body, indent=1) + "\n")
    PAGE.write_text(render(body))


def render(body: dict[str, Any]) -> str:
    share = body["overhead"]["share"]
    load = [f"{value:.1f}" for value in body["load_average"]]
    busy = max(body["load_average"]) > body["cores"] + 0.5
    return TEXT.format(
        date=body["date"][:10], machine=body["machine"], cores=body["cores"], commit=body["commit"].rstrip("+"),
        versions=", ".join(f"{name} {version}" for name, version in body["versions"].items()),
        repetitions=body["repetitions"], rounds=body["rounds"], load=", ".join(load),
        busy=": other work was under way, so that the rates are too low for all, and only the ratios count" * busy,
        table=table(body["contenders"]), overhead=body["overhead"]["seconds_per_round"] * 1e3, fp32=share["fp32"],
        bf16=share["bf16"],
        to_limit=to_limit(body["to_limit"]),
        turns=" Pairs of turns are whole turns as above, one right after the other; they tell the same less exactly."
        * any(one["pairs_of"] == "turns" for one in body["to_limit"].values()),
        start="; ".join(
            f"{name} " + ", ".join(f"{s:.1f} s with {n} worker{'s' * (n != '1')}" for n, s in seconds.items())
            for name, seconds in body["start"].items()
        ),
        growth_commit=body["growth"]["commit"].rstrip("+"), figures="\n\n".join(figures(body["growth"]["points"])),
    )  # fmt: skip


def to_limit(measured: dict[str, dict[str, Any]]) -> str:
    """What fedlib reaches of the bare loop, by processor, as a Markdown table."""
    lines = ["| processor | measured | fp32 | bf16 | fp32, waiting | bf16, waiting |", "|---|---|---:|---:|---:|---:|"]
    for machine, one in measured.items():
        ratios = [one[name].get(kind) for kind in ("alone", "waiting") for name in ("fp32", "bf16")]
        how = f"{one['date'][:10]}, commit {one['commit'].rstrip('+')}, {len(ratios[0])} pairs of {one['pairs_of']}"
        cells = [machine, how, *(estimate(own).format(".3f") if own else "" for own in ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The contenders as a Markdown table."""
    lines = [
        "| | samples/s | lowest to highest | s/round | CPU s/round | peak MiB | times the fastest peer "
        "| times the bare loop |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {row['samples_per_second']:,.0f} | {row['lowest']:,.0f} to {row['highest']:,.0f} "
        f"| {row['seconds_per_round']:.2f} | {row['cpu_seconds_per_round']:.2f} | {row['peak_mib']:,.0f} "
        f"| {row['to_fastest_peer']:.2f} | {row['to_bare_loop']:.2f} |"
        for name, row in rows.items()
    ]
    return "\n".join(lines)


def figures(points: list[dict[str, Any]]) -> list[str]:
    """Time and peak memory of a round against each quantity, as HTML blocks."""
    blocks = []
    for quantity, own in pd.DataFrame(points).groupby("quantity", sort=False):
        figure, axes = plots.new(2, height=2.4)
        for panel, column, label in zip(axes, ("seconds_per_round", "peak_mib"), ("s/round", "peak MiB"), strict=True):
            panel.plot(own["value"], own[column], marker="o", color=plots.COLOURS[0])
            panel.set(xscale="log", xlabel=quantity, ylabel=label, ylim=(0, 1.1 * own[column].max()))
            panel.set_xticks(own["value"], [f"{value:,.0f}" for value in own["value"]])
            panel.minorticks_off()
        ends = [(row.value, row.seconds_per_round, row.peak_mib) for row in (own.iloc[0], own.iloc[-1])]
        caption = f"Seconds and peak memory of a round against {quantity}: " + ", ".join(
            f"{seconds:.2f} s and {peak:,.0f} MiB at {value:,.0f}" for value, seconds, peak in ends
        )
        html = plots.block(figure, caption, f"{caption}.", own, "cost-" + str(quantity).replace(" ", "-"))
        blocks.append(f"```{{raw}} html\n{html}\n```")
    return blocks
