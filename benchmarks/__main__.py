"""Measure, print the table, write ``benchmarks/latest.json`` and the book's page on speed."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import growth, limit, page, peers, start, workload
from benchmarks.turn import Contender, Turn, take
from fedlib.records import commit, processor


def contenders(cores: int) -> list[Contender]:
    """All of them, each with as many threads in total as there are cores."""
    all_cores: dict[str, Any] = {"threads": cores}
    return [
        Contender("fedlib fp32", "ours", all_cores),
        Contender("fedlib bf16", "ours", all_cores | {"bf16": True}),
        Contender("bare loop fp32", "bare", all_cores),
        Contender("bare loop bf16", "bare", all_cores | {"bf16": True}),
        Contender("PyTorch, DataLoader", "plain", all_cores, peer=True),
        Contender("PyTorch, index batches", "plain", all_cores | {"index": True}, peer=True),
        Contender("PyTorch, index batches, bf16", "plain", all_cores | {"index": True, "bf16": True}, peer=True),
        Contender("Flower, DataLoader", "flower", all_cores, peer=True),
        Contender("Flower, index batches", "flower", all_cores | {"index": True}, peer=True),
        Contender("pfl-research, one process", "pfl_research", all_cores, peer=True),
        Contender("pfl-research", "pfl_research", all_cores | {"processes": cores}, peer=True),
        Contender("pfl-research, bf16", "pfl_research", all_cores | {"processes": cores, "bf16": True}, peer=True),
        Contender("fedlib fp32, one worker", "ours", {"threads": 1}),
        Contender("fedlib bf16, one worker", "ours", {"threads": 1, "bf16": True}),
        Contender("fedlib, empty round", "ours", all_cores | {"empty": True}),
    ]


def summary(turns: dict[str, list[Turn]], peaks: dict[str, float], peer_names: list[str]) -> dict[str, Any]:
    """Per contender medians over its turns; ratios are medians of the ratios within a repetition."""
    rates = {name: np.array([turn.samples_per_second for turn in own]) for name, own in turns.items()}
    fastest = np.max([rates[name] for name in peer_names if "bf16" not in name], axis=0)
    rows = {}
    for name, own in turns.items():
        bare = "bare loop bf16" if "bf16" in name else "bare loop fp32"
        rows[name] = {
            "samples_per_second": float(np.median(rates[name])),
            "lowest": float(rates[name].min()),
            "highest": float(rates[name].max()),
            "seconds_per_round": float(np.median([turn.seconds_per_round for turn in own])),
            "cpu_seconds_per_round": float(np.median([turn.cpu_seconds_per_round for turn in own])),
            "peak_mib": peaks[name],
            "to_fastest_peer": float(np.median(rates[name] / fastest)),
            "to_bare_loop": float(np.median(rates[name] / rates[bare])),
        }
    return rows


def machine(cores: int) -> dict[str, Any]:
    """What the numbers were made on and with."""
    own = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": processor(), "cores": cores,
        "commit": commit(), "versions": own | peers.versions("flwr", "ray", "pfl"),
    }  # fmt: skip


def show(rows: dict[str, dict[str, Any]]) -> None:
    table = Table(title="Training speed in steady state")
    for heading in ("", "samples/s", "lowest to highest", "s/round", "CPU s/round", "peak MiB", "x fastest peer",
                    "x bare loop"):  # fmt: skip
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in rows.items():
        table.add_row(
            name, f"{row['samples_per_second']:,.0f}", f"{row['lowest']:,.0f} to {row['highest']:,.0f}",
            f"{row['seconds_per_round']:.3f}", f"{row['cpu_seconds_per_round']:.3f}", f"{row['peak_mib']:,.0f}",
            f"{row['to_fastest_peer']:.2f}", f"{row['to_bare_loop']:.3f}",
        )  # fmt: skip
    Console().print(table)


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 5,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds in a turn.")] = 5,
    cores: Annotated[int, typer.Option(min=1, help="Cores that every contender may use.")] = 2,
    only: Annotated[str, typer.Option(help="Contenders whose names have this in them; writes nothing.")] = "",
    skip_growth: Annotated[bool, typer.Option("--skip-growth", help="Keep the stored numbers on growth.")] = False,
) -> None:
    """Compare fedlib with the bare loop, plain PyTorch, Flower and pfl-research, all in turn, again and again."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ.pop("OMP_NUM_THREADS", None)  # every contender sets its threads itself
    chosen = [contender for contender in contenders(cores) if only in contender.name]
    pythons = {True: peers.install(), False: Path(sys.executable)}
    load, before = [], json.loads(page.LATEST.read_text()) if page.LATEST.exists() else {}
    with tempfile.TemporaryDirectory() as folder, Progress(transient=True) as bar:
        images = Path(folder) / "speed"
        workload.write(images)
        task = bar.add_task("", total=len(chosen) * (repetitions + 1))

        def turn(contender: Contender, memory: bool = False) -> Turn:
            bar.update(task, description=contender.name, advance=1)
            return take(contender, pythons[contender.peer], images, rounds, memory)

        # The turns for memory come first: they also warm the file cache for all.
        peaks = {contender.name: turn(contender, memory=True).peak_mib for contender in chosen}
        turns: dict[str, list[Turn]] = {contender.name: [] for contender in chosen}
        for _ in range(repetitions):
            load.append(os.getloadavg()[0])
            for contender in chosen:
                turns[contender.name].append(turn(contender))
        if only:
            for name, own in turns.items():
                print(name, [round(one.samples_per_second) for one in own], own, peaks[name])
            return
        bar.update(task, description="rounds in turn")
        to_limit = limit.measure(images, cores)
        bar.update(task, description="start")
        starts = {
            name: {str(workers): start.measure(name, workers, repetitions) for workers in (1, cores)}
            for name in start.DATA
        }
        bar.update(task, description="growth")
        if skip_growth:
            grown = before["growth"]
        else:
            grown = {"commit": commit(), "points": list(growth.measure(Path(folder), cores, rounds))}

    names = [contender.name for contender in chosen if contender.peer]
    rows = summary(turns, peaks, names)
    empty = rows.pop("fedlib, empty round")
    shares = {
        name: float(np.median([
            bare.seconds_per_round / full.seconds_per_round
            for bare, full in zip(turns["fedlib, empty round"], turns[f"fedlib {name}"], strict=True)
        ]))
        for name in ("fp32", "bf16")
    }  # fmt: skip
    body = machine(cores) | {
        "load_average": load, "repetitions": repetitions, "rounds": rounds, "contenders": rows,
        "overhead": {"seconds_per_round": empty["seconds_per_round"], "share": shares},
        "to_limit": before.get("to_limit", {}) | to_limit, "start": starts, "growth": grown,
    }  # fmt: skip
    show(rows)
    page.write(body)
    overhead = ", ".join(f"{share:.1%} of a round in {name}" for name, share in shares.items())
    print(page.to_limit(to_limit))
    print(f"A round without training steps takes {empty['seconds_per_round'] * 1e3:.1f} ms: {overhead}.")
    for name, seconds in starts.items():
        print(f"First batch of {name} after", ", ".join(f"{s:.1f} s with {n} worker(s)" for n, s in seconds.items()))


if __name__ == "__main__":
    typer.run(main)
