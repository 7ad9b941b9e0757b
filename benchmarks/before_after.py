"""Two versions side by side: what a redesign must leave as it was.

    git worktree add ../before COMMIT          or unpack its source anywhere
    python benchmarks/before_after.py ../before tables     every cell of every table
    python benchmarks/before_after.py ../before runs       the runs that every table lacks
    python benchmarks/before_after.py ../before demo       demo/capsnet, bit for bit, on a CPU
    python benchmarks/before_after.py ../before steps      training steps on a GPU, in turns

Both are plain source folders; `--after FOLDER` names another one than this. Each runs its own
command line. `steps` runs the benchmarks of training steps of both side by side, so that all is
compiled; then after each other, and again, up to twice, where a row seems more than 3 % slower.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PAPERS = ("robustness", "inverted", "mcae", "sparse", "generative")
RENAMED_ROWS = {
    ("generative", "t0"): "encoding per object, t0",
    ("generative", "t0, A0"): "encoding per object, t0, A0",
    ("generative", "one state, t0"): "t0",
    ("generative", "one state, t0, A0"): "t0, A0",
}
"""(paper, row before): its name now. The paper's value stays with the name that it prints."""
STEPS = {
    "models.py": [],
    "inverted.py": ["--passes", "1", "2", "3"],
    "mcae.py": ["CIFAR-10"],
    "sparse.py": ["sparse", "sparse/best"],
    "generative.py": ["generative", "generative-framed", "scae", "vae"],
}


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


def _times(tree: Path, script: str, words: list[str]) -> dict[str, float]:
    found = {}
    for line in run(tree, *words, script=str(tree / "benchmarks" / script)).splitlines():
        if line.startswith("{") and "'ms'" in line:
            row = eval(line, {"__builtins__": {}})  # what the benchmark printed: a dict of literals
            if "votes written" not in row["impl"]:
                found[f"{row['op']} {row.get('passes', '')}".strip()] = row["ms"]
    return found


def steps(before: Path, after: Path, scripts: list[str]) -> bool:
    worst = 0.0
    chosen = {script: STEPS[script] for script in scripts}
    jobs = [(tree, *job) for tree in (before, after) for job in chosen.items()]
    with ThreadPoolExecutor() as pool:  # times of this round are not looked at
        list(pool.map(lambda job: _times(*job), jobs))
    for script, words in chosen.items():
        best: dict[str, dict[str, float]] = {"before": {}, "after": {}}
        for _ in range(3):
            for name, tree in (("before", before), ("after", after)):
                for op, ms in _times(tree, script, words).items():
                    best[name][op] = min(ms, best[name].get(op, ms))
            if all(best["after"][op] <= 1.03 * ms for op, ms in best["before"].items()):
                break
        for op, ms in best["before"].items():
            ratio = best["after"][op] / ms
            worst = max(worst, ratio)
            row = {"op": op, "before_ms": ms, "after_ms": best["after"][op]}
            print(json.dumps({**row, "ratio": round(ratio, 4)}), flush=True)
    return worst <= 1.03


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the source folder of the older version")
    parser.add_argument("what", choices=["tables", "runs", "demo", "steps"])
    parser.add_argument("scripts", nargs="*", default=list(STEPS), help="of `steps`: which of them")
    parser.add_argument("--after", type=Path, default=HERE, help="default: this source folder")
    options = parser.parse_args()
    checks = {
        "tables": tables, "runs": missing_runs, "demo": demo,
        "steps": partial(steps, scripts=options.scripts),
    }  # fmt: skip
    equal = checks[options.what](options.before.resolve(), options.after.resolve())
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
