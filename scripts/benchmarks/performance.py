"""Runs the benchmarks that measure ratios, and writes them to `docs/performance.md`.

Each benchmark is a separate process, and runs alone on the machine. It measures both sides of a
ratio alternately. Run it while nothing else runs: it takes about half an hour. Sections of the page
that no benchmark here measures stay as they are, after the measured ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import rows
from absl import app, flags

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "performance.md"
LIMIT_S = 2400.0
BENCHMARKS: dict[str, tuple[str, list[str]]] = {
    "A step alone": ("fit_overhead", ["--epochs=16"]),
    "A step of two workers": ("two_workers", ["--repetitions=3"]),
    "A step of two workers on a slow network": ("slow_network", ["--repetitions=5"]),
    "Deterministic": (
        "deterministic",
        [
            "--repetitions=2",
            "--workers=1,2,4,8",
            "--kinds=usual,deterministic",
            "--networks=tiny MLP,small ResNet",
        ],
    ),
    "Joins of large models": ("joins", []),
    "Checkpoints": ("checkpoints", ["--checkpoints=6"]),
    "Start-up": ("start_up", []),
    "Memory": ("memory", []),
    "Memory of the launcher": ("master", ["--workers=4,100,1000", "--steady_s=1"]),
}
"""Headings, and the benchmark that measures the rows below each."""
HEAD = """# Performance

All measurements of speed, time and memory, on one machine with {cpus} processors. The sections up
to "Memory of the launcher" are written by `scripts/bench performance` ({date}). Each number there
is a ratio of two things that were measured in one run; below 1 is better than what it is compared
with. Where there is a limit, the last column says how far from it this is. The other sections name
the benchmark that measured them. [scale.md](scale.md) has the costs of many workers.
"""

_ONLY = flags.DEFINE_list(
    "only", [], "Headings to measure, all if none is given; the page keeps its other sections."
)
_OUTPUT = flags.DEFINE_string("output", str(PAGE), "The page.")


def measured(name: str, arguments: Sequence[str]) -> list[rows.Row]:
    """Runs one benchmark; returns its rows.

    Raises:
      SystemExit: if the benchmark fails.
    """
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch, "rows.json")
        command = [sys.executable, str(HERE / f"{name}.py"), f"--rows={found}", *arguments]
        result = subprocess.run(command, timeout=LIMIT_S, check=False)
        if result.returncode:
            raise SystemExit(f"{name} ended with {result.returncode}; its section stays as it was.")
        return rows.read(found)


def table(found: Sequence[rows.Row]) -> str:
    """Returns rows as a Markdown table."""
    lines = ["| what | ratio | to | limit, and how far from it |", "|---|---|---|---|"]
    for row in found:
        limit = f"{row.from_limit:.2f} x {row.limit}" if row.from_limit is not None else row.limit
        lines.append(f"| {row.what} | {row.ratio:.2f} | {row.against} | {limit} |")
    return "\n".join(lines)


def sections_of(page: str) -> dict[str, str]:
    """Returns the text below each heading of a page."""
    parts = (part.partition("\n") for part in f"\n{page}".split("\n## ")[1:])
    return {heading: text.strip() for heading, _, text in parts}


def main(_: list[str]) -> None:
    """Measures, and writes each section as soon as it is measured."""
    wanted = _ONLY.value or list(BENCHMARKS)
    if unknown := set(wanted) - set(BENCHMARKS):
        raise SystemExit(f"--only has {sorted(unknown)}, expected some of {list(BENCHMARKS)}.")
    head = HEAD.format(cpus=os.cpu_count(), date=time.strftime("%B %Y")).strip()
    page = Path(_OUTPUT.value)
    for heading in wanted:
        section = f"`scripts/bench {BENCHMARKS[heading][0]}`\n\n" + table(
            measured(*BENCHMARKS[heading])
        )
        sections = {**sections_of(page.read_text() if page.exists() else ""), heading: section}
        names = [*BENCHMARKS, *(name for name in sections if name not in BENCHMARKS)]
        ordered = [f"## {name}\n\n{sections[name]}" for name in names if name in sections]
        page.write_text("\n\n".join([head, *ordered]) + "\n")


if __name__ == "__main__":
    app.run(main)
