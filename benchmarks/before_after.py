"""Two commits side by side: what a change of the house must leave as it was.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before tables     every cell of every table
    python benchmarks/before_after.py ../before demo       demo/capsnet, bit for bit, on a CPU
    python benchmarks/before_after.py ../before steps      training steps on a GPU, in turns

`steps` runs benchmarks/{models,inverted,mcae}.py of both trees side by side, so that all is
compiled; then after each other, and again, up to twice, where a row seems more than 3 % slower.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
PAPERS = ("robustness", "inverted", "mcae")
RENAMED = {"AffNIST": "affNIST ±8 px"}
"""Columns whose lines have another name since; the paper's value stands in the column `affNIST`."""
STEPS = {"models.py": [], "inverted.py": ["--passes", "1", "2", "3"], "mcae.py": ["CIFAR-10"]}


def run(tree: Path, *words: str, script: str = "-m") -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        filter(None, (str(tree), os.environ.get("PYTHONPATH", "")))
    )}  # fmt: skip
    command = [sys.executable, script, *words]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def cells(tree: Path) -> dict[tuple[str, ...], dict[str, Any]]:
    found = {}
    for paper in PAPERS:
        for cell in json.loads(run(tree, "torchcaps.cli", "table", paper, "--json")):
            if cell["column"] in RENAMED:
                cell |= {"column": RENAMED[cell["column"]], "paper_value": None}
            key = tuple(cell[n] for n in ("paper", "table", "row", "column", "protocol"))
            found[key] = cell
    return found


def tables(before: Path) -> bool:
    old, new = cells(before), cells(HERE)
    differ = [k for k in old if k not in new or any(new[k][f] != v for f, v in old[k].items())]
    repeated = [k for k in differ if k in new and new[k].get("repeated")]
    for key in differ:
        why = "a seed was run twice" if key in repeated else "DIFFERS"
        print(key, {f: (v, new.get(key, {}).get(f)) for f, v in old[key].items()
                    if new.get(key, {}).get(f) != v}, why)  # fmt: skip
    more = len(new.keys() - old.keys())
    print(f"{len(old)} cells, {len(differ)} differ, {len(repeated)} of them by a repeated seed; "
          f"{more} new cells")  # fmt: skip
    return len(differ) == len(repeated)


def demo(before: Path) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        lines, results = [], []
        for name, tree in (("before", before), ("after", HERE)):
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


def steps(before: Path, scripts: list[str]) -> bool:
    worst = 0.0
    chosen = {script: STEPS[script] for script in scripts}
    jobs = [(tree, *job) for tree in (before, HERE) for job in chosen.items()]
    with ThreadPoolExecutor() as pool:  # times of this round are not looked at
        list(pool.map(lambda job: _times(*job), jobs))
    for script, words in chosen.items():
        best: dict[str, dict[str, float]] = {"before": {}, "after": {}}
        for _ in range(3):
            for name, tree in (("before", before), ("after", HERE)):
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path, help="a checkout of the older commit")
    parser.add_argument("what", choices=["tables", "demo", "steps"])
    parser.add_argument("scripts", nargs="*", default=list(STEPS), help="of `steps`: which of them")
    options = parser.parse_args()
    looks = {"tables": tables, "demo": demo, "steps": partial(steps, scripts=options.scripts)}
    good = looks[options.what](options.before.resolve())
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
