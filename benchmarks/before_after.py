"""Two versions side by side: what a redesign must leave as it was.

    git worktree add ../before COMMIT          or unpack its source anywhere
    python benchmarks/before_after.py ../before tables     every cell of every table
    python benchmarks/before_after.py ../before runs       the runs that every table lacks
    python benchmarks/before_after.py ../before demo       demo/capsnet, bit for bit, on a CPU
    python benchmarks/before_after.py ../before steps      training steps on a GPU, in turns

Both are plain source folders; `--after FOLDER` names another one than this. Each runs its own
command line. `steps` compiles the training steps of both, each group in a process of its own, and
then replays them in turns, nine times; benchmarks/steps.py has the groups.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from steps import GROUPS

HERE = Path(__file__).resolve().parents[1]
PAPERS = ("robustness", "inverted", "mcae", "sparse", "generative")
RENAMED_ROWS = {
    ("generative", "t0"): "encoding per object, t0",
    ("generative", "t0, A0"): "encoding per object, t0, A0",
    ("generative", "one state, t0"): "t0",
    ("generative", "one state, t0, A0"): "t0, A0",
}
"""(paper, row before): its name now. The paper's value stays with the name that it prints."""


def run(tree: Path, *words: str, script: str = "-m") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        filter(None, (str(tree), os.environ.get("PYTHONPATH", "")))
    )}  # fmt: skip
    command = [sys.executable, script, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def paper_command(tree: Path, name: str) -> list[str]:
    """The words of a command on papers: `paper NAME`, or what it was called before that group."""
    if (tree / "torchcaps" / "cli" / "paper.py").exists():
        return ["torchcaps.cli", "paper", name]
    return ["torchcaps.cli", {"run": "reproduce"}.get(name, name)]


def cells(tree: Path, renamed: dict[tuple[str, str], str]) -> dict[tuple[str, ...], dict[str, Any]]:
    cells = {}
    for paper in PAPERS:
        for cell in json.loads(run(tree, *paper_command(tree, "table"), paper, "--json")):
            if name := renamed.get((paper, cell["row"])):
                cell["row"] = name
                cell.pop("paper_value", None)
            key = tuple(cell[n] for n in ("paper", "table", "row", "column", "protocol"))
            cells[key] = cell
    return cells


def tables(before: Path, after: Path) -> bool:
    """Every cell of the older version is there and equal, field by field."""
    old, new = cells(before, RENAMED_ROWS), cells(after, {})
    differ = [k for k in old if k not in new or any(new[k][f] != v for f, v in old[k].items())]
    for key in differ:
        print(key, {f: (v, new.get(key, {}).get(f)) for f, v in old[key].items()
                    if new.get(key, {}).get(f) != v})  # fmt: skip
    filled = sum(bool(cell["n"]) for cell in old.values())
    more = len(new.keys() - old.keys())
    print(f"{len(old)} cells, {filled} with runs, {len(differ)} differ; {more} new cells")
    return not differ


def missing_runs(before: Path, after: Path) -> bool:
    """Both versions would run the same recipes and seeds, and expect the same seconds."""
    equal = True
    for paper in PAPERS:
        runs = []
        for tree in (before, after):
            lines = run(tree, *paper_command(tree, "run"), paper, "--dry").splitlines()
            trains = [re.match(r"torchcaps train (.*?)(?: &&|  #)", line) for line in lines]
            runs.append(([m[1] for m in trains if m], lines[-1]))
        alike = runs[0] == runs[1]
        equal = equal and alike
        print(f"{paper}: {len(runs[1][0])} runs, {'the same' if alike else 'DIFFERENT'}")
    return equal


def demo(before: Path, after: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        lines, results = [], []
        for name, tree in (("before", before), ("after", after)):
            out = Path(folder) / name
            words = ("torchcaps.cli", "train", "demo/capsnet", "--hardware.accelerator", "cpu")
            run(tree, *words, "--out", str(out))
            text = (out / "metrics.jsonl").read_text()
            lines.append([json.loads(line) for line in text.splitlines()])
            record = json.loads((out / "record.json").read_text())
            results.append({(r["data"], r["split"], r["metric"]): r["value"]
                            for r in record["results"]})  # fmt: skip
    pairs = zip(*lines, strict=True)
    curves = all(new[field] == value for old, new in pairs for field, value in old.items())
    shared = results[0].keys() & results[1].keys()
    ends = all(results[0][key] == results[1][key] for key in shared)
    print(f"demo/capsnet: {len(lines[0])} epochs, curves {'equal' if curves else 'DIFFER'}, "
          f"{len(shared)} results {'equal' if ends else 'DIFFER'}")  # fmt: skip
    for key in results[0].keys() - shared:
        print("not measured any more:", *key)
    return curves and ends


def steps(before: Path, after: Path, groups: list[str]) -> bool:
    """Every step of both as a CUDA graph in processes that wait; then replayed in turns."""
    script, processes = HERE / "benchmarks" / "steps.py", {}
    for group in groups:
        for tree in (before, after):
            words = [sys.executable, str(script), str(tree.resolve()), group]
            processes[group, tree] = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )

    def answer(group: str, tree: Path, line: str = "") -> Any:
        process = processes[group, tree]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line)
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    names = {key: answer(*key) for key in processes}  # all is compiled before the first is timed
    worst = 0.0
    for group in groups:
        for name in names[group, before]:
            times: dict[Path, list[float]] = {before: [], after: []}
            for _ in range(9):
                for tree, values in times.items():
                    values.append(answer(group, tree, name + "\n"))
            first, second = (median(times[tree]) for tree in (before, after))
            worst = max(worst, second / first)
            row = {"op": name, "before_ms": round(first, 4), "after_ms": round(second, 4)}
            print(json.dumps({**row, "ratio": round(second / first, 4)}), flush=True)
    return worst <= 1.03


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the source folder of the older version")
    parser.add_argument("what", choices=["tables", "runs", "demo", "steps"])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help="of `steps`: which groups")
    parser.add_argument("--after", type=Path, default=HERE, help="default: this source folder")
    options = parser.parse_args()
    checks = {
        "tables": tables, "runs": missing_runs, "demo": demo,
        "steps": partial(steps, groups=options.groups),
    }  # fmt: skip
    equal = checks[options.what](options.before.resolve(), options.after.resolve())
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
