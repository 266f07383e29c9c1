"""What the benchmark scripts share: command lines, processes, timing, memory, tables and reports.

It does not depend on the trainer. Functions that need torch, transformers or psutil import them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import psutil

P = ParamSpec("P")
T = TypeVar("T")

# Command lines.

_OPTIONS: dict[str, dict[str, Any]] = {
    "out": {"type": Path, "help": "JSON file of the measurements"},
    "quick": {"action": "store_true", "help": "tiny settings, which only show that the script works"},
    "report": {"type": Path, "help": "write the page to this folder from what was measured before; measure nothing"},
    "seconds": {"type": float, "help": "duration of each measurement"},
    "repeats": {"type": int, "help": "number of repetitions"},
    "device": {"choices": ("cuda", "cpu"), "help": "device of the model"},
    "tiny": {"action": "store_true", "help": "a tiny model and short episodes, which only show that the script works"},
}


def arguments(doc: str | None, *options: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return the command line of a script: the first line of its docstring, and some of the common options."""
    parser = argparse.ArgumentParser(
        description=(doc or "").split("\n", 1)[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for option in options:
        parser.add_argument(f"--{option}", **_OPTIONS[option])
    parser.set_defaults(**defaults)
    return parser


def study_arguments(doc: str | None) -> tuple[argparse.Namespace, str]:
    """Parse the command line of a study of training runs over seeds; also return the command that runs all of it."""
    script = Path(sys.argv[0])
    parser = arguments(doc, "quick", "report")
    parser.add_argument("--out", type=Path, default=Path("runs", script.stem), help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    settings = parser.parse_args()
    return settings, f"uv run python benchmarks/{script.name} --seeds {' '.join(map(str, settings.seeds))}"


def study_records(settings: argparse.Namespace, name: str) -> tuple[Path, list[dict[str, Any]]]:
    """Return the file of a study's records, docs/results/NAME.json or with `quick` one in `out`, and what it has.

    Raises:
        SystemExit: If it has none to report.
    """
    file = (settings.out if settings.quick else Path("docs/results")) / f"{name}.json"
    records: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if settings.report is not None and not records:
        raise SystemExit(f"{file} has no records; run the script without --report first.")
    return file, records


# Processes.


def isolated(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a new process, so that it inherits neither memory nor caches nor threads."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *args, **kwargs).result()


def run_parallel(tasks: Sequence[Callable[[], T]], processes: int) -> list[T]:
    """Run tasks in a pool of new processes and print each result as it arrives; return the results in task order.

    A task that finds its result already recorded should return early, so that an interrupted script can be restarted.
    """
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(task) for task in tasks]
        for done, future in enumerate(as_completed(futures), 1):
            print(f"{done}/{len(tasks)} {future.result()}", flush=True)
        return [future.result() for future in futures]


def quiet() -> None:
    """Use one torch thread, and silence the warnings and progress bars of libraries."""
    import logging
    import warnings

    import torch
    from transformers.utils import logging as transformers_logging

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers_logging.disable_progress_bar()


def device_name(device: str) -> str:
    """Return the name of the GPU for "cuda", or "CPU".

    Raises:
        SystemExit: If there is no GPU.
    """
    import torch

    if device != "cuda":
        return "CPU"
    if not torch.cuda.is_available():
        raise SystemExit("No GPU was found. --device cpu --tiny only shows that the script works.")
    return torch.cuda.get_device_name()


# Timing.


class CallTimer:
    """The number and the total duration in seconds of calls, by name."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def __call__(self, name: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function; a call that raises isn't counted."""
        began = time.perf_counter()
        result = function(*args, **kwargs)
        self.seconds[name] += time.perf_counter() - began
        self.count[name] += 1
        return result


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of repeated measurements."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Return the spread of at least one value."""
        found = list(values)
        return cls(median(found), min(found), max(found))

    def __str__(self) -> str:
        """Return such as "4.76 (4.50 to 5.03)"."""
        return f"{self.median:.2f} ({self.least:.2f} to {self.most:.2f})"


# Memory.


def process_tree() -> list[psutil.Process]:
    """Return this process and its descendants."""
    import psutil

    this = psutil.Process()
    return [this, *this.children(recursive=True)]


def resident_mb(processes: Iterable[psutil.Process]) -> float:
    """Return the resident memory of processes in MiB."""
    return sum(process.memory_info().rss for process in processes) / 2**20


def memory_status(pid: int | str = "self") -> dict[str, int]:
    """Return the memory of a process in bytes by name (VmRSS, VmHWM, RssAnon, RssFile, ...), as Linux reports it."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


# Tables and reports.


def markdown(rows: Sequence[Mapping[str, str]], *, align: bool = False) -> str:
    """Return rows as a Markdown table; `align` pads the cells for reading in a terminal."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) if align else 3 for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) if align else cell for cell, width in zip(c, widths, strict=True)] for c in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def show(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table."""
    print(f"\n{title}\n\n{markdown(rows, align=True)}", flush=True)


def write_json(file: Path | None, record: Any) -> None:
    """Write a record, whose dataclasses become objects; without a file, do nothing."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1, default=asdict) + "\n", encoding="utf-8")


def write_report(folder: Path, name: str, page: str, record: Any = None) -> None:
    """Write a page to NAME.md, and its record, if any, to NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
    if record is not None:
        write_json(folder / f"{name}.json", record)
