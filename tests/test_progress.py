"""Progress is told across processes, whatever reads it."""

import json
import os
import pty
import re
import subprocess
import sys

from fedlib import progress

SHOW = """
import time
from fedlib import progress

progress.PERIOD = 0.05
with progress.shown("a chapter") as tally:
    progress.plan({"a": 2, "b": 2})
    for run in "ab":
        for round in (1, 2):
            progress.report(run, round, 2)
            time.sleep(0.3)
assert tally.runs == 2
"""


def test_the_tally_of_several_processes(tmp_path, monkeypatch):
    path, record = tmp_path / "progress", tmp_path / "record"
    record.write_text("content")
    path.touch()
    tally = progress.Tally(path)
    monkeypatch.setenv(progress.VARIABLE, str(path))
    progress.plan({"a": 2, "b": 3})
    progress.report("a", 1, 2)
    tally.read()
    assert (tally.planned, tally.done, tally.runs) == ({"a": 2, "b": 3}, {"a": 1}, 0)
    other = "from fedlib import progress; progress.report('a', 2, 2); progress.report('c', 1, 4)"
    subprocess.run([sys.executable, "-c", other], check=True)
    progress.used([("a", record)])
    tally.read()
    assert (tally.planned["c"], tally.runs) == (4, 1)
    assert tally.used == {"a": (str(record), progress.file_digest(record))}


def test_half_a_line_waits_for_its_rest(tmp_path):
    path = tmp_path / "progress"
    line = json.dumps({"run": "a", "round": 1, "rounds": 1}) + "\n"
    path.write_text(line[:9])
    tally = progress.Tally(path)
    tally.read()
    assert tally.done == {}
    path.write_text(line)
    tally.read()
    assert tally.done == {"a": 1}


def test_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.delenv(progress.VARIABLE, raising=False)
    progress.report("a", 1, 1)
    progress.used([("a", tmp_path / "is not read")])


def test_quiet_lines_where_there_is_no_terminal():
    shown = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    lines = shown.stderr.splitlines()
    assert [re.sub(r", \d+ s$", "", line) for line in lines] == ["a chapter: 1 of 2 runs", "a chapter: 2 of 2 runs"]
    assert shown.stdout == ""


def test_a_bar_with_an_estimate_on_a_terminal():
    mine, its = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", SHOW], stderr=its, stdout=its, env=environment)
    os.close(its)
    shown = b""
    while True:
        try:
            shown += os.read(mine, 4096)
        except OSError:  # closed at the other end
            break
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "a chapter" in text and "4/4 rounds, 2 of 2 runs" in text
    assert re.search(r"0:00:0\d\s+left", text)
