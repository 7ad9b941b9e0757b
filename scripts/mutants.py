"""Mutation tests: change one place of the code at a time and see whether a test fails.

python scripts/mutants.py [--count N] [--seed S] [--hours H] [--jobs J] [--again] [TESTS…]
    [--only PATTERN…]

Takes the first N of all mutants in an order that the seed determines. Each runs the tests that
cover its line, fastest first, up to the first failure. The run continues where a killed one ended;
--again runs survivors once more, after tests were added. TESTS: test files; default: all.

Writes build/mutants.json and the table of docs/lab-notes/survivors.md, whose last column, the
reason, is written by hand and kept.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator
from parso.python.tree import Name

from scripts.covering_tests import Coverage, forked, preload, run_tests

ROOT = Path(__file__).resolve().parent.parent
RESULTS, SURVIVORS = ROOT / "build/mutants.json", ROOT / "docs/lab-notes/survivors.md"
MODULES = (
    "functional.py", "routing/*.py", "layers/*.py", "metrics/**/*.py", "data/augment.py",
    "data/dataset.py", "data/ink.py", "data/loader.py", "data/sets/folder.py",
    "data/sets/generated.py", "data/sets/multimnist.py", "training/checkpoint.py",
    "training/evaluate.py", "training/final_evaluation.py", "papers/records.py",
    "papers/tables.py",
)  # fmt: skip
OPERATORS = (
    *(
        f"ReplaceBinaryOperator_{pair}"
        for pair in (
            "Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul",
            "BitAnd_BitOr", "BitOr_BitAnd", "BitXor_BitOr", "LShift_RShift", "RShift_LShift",
        )
    ),
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in (
            "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "Eq_NotEq", "NotEq_Eq",
            "Is_IsNot", "IsNot_Is",
        )
    ),
    "ReplaceUnaryOperator_USub_UAdd", "ReplaceUnaryOperator_Delete_USub",
    "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_Invert", "AddNot",
    "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer",
    "ZeroIterationForLoop",
)  # fmt: skip
"""Operators of cosmic-ray: of each kind those whose mutants are not all found at once."""
SECONDS = 120.0
"""Recorded time of the tests of one mutant; slower tests are left out."""


class SwapNames(Operator):
    """Replace a function, attribute or keyword by its counterpart: min by max, val by test."""

    PAIRS = (
        ("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("sum", "mean"), ("any", "all"),
        ("zeros", "ones"), ("val", "test"), ("height", "width"), ("floor", "ceil"),
        ("ones_like", "zeros_like"), ("softmax", "sigmoid"), ("unsqueeze", "squeeze"),
    )  # fmt: skip
    OTHER = {a: b for pair in PAIRS for a, b in (pair, pair[::-1])}

    def mutation_positions(self, node: Any) -> Any:
        if node.type == "name" and node.value in self.OTHER and self._refers(node):
            yield node.start_pos, node.end_pos

    @staticmethod
    def _refers(node: Any) -> bool:
        previous, following = node.get_previous_leaf(), node.get_next_leaf()
        attribute = previous is not None and previous.value == "."
        called = following is not None and following.value == "("
        return node.parent.type != "funcdef" and (attribute or called)

    def mutate(self, node: Any, index: int) -> Any:
        return Name(self.OTHER[node.value], node.start_pos, node.prefix)

    @classmethod
    def examples(cls) -> Any:
        return ()


def operators() -> dict[str, Any]:
    """Operators by name."""
    return {name: get_operator(f"core/{name}") for name in OPERATORS} | {"SwapNames": SwapNames}


@dataclass(frozen=True)
class Mutant:
    """One change of one place."""

    file: str
    operator: str
    occurrence: int
    """Which of the places where the operator applies in the file."""
    line: int
    text: str
    """The line before the change."""
    number: int
    """Which of the places where the operator applies in lines of this text."""

    @property
    def id(self) -> str:
        """A name that does not change when other lines of the file do."""
        facts = (self.file, self.operator, self.text, self.number)
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:10]

    def source(self) -> str:
        """The whole file with the change."""
        code = (ROOT / self.file).read_text()
        mutated = mutate_code(code, operators()[self.operator](), self.occurrence)
        assert mutated is not None
        return mutated


def skipped(code: str) -> Callable[[int, int], bool]:
    """Whether a place is in a type annotation or a condition for type checkers."""
    ranges = []
    for node in ast.walk(ast.parse(code)):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            parts.append(node)
        for part in parts:
            if isinstance(part, ast.expr | ast.stmt):
                end = (part.end_lineno or 0, part.end_col_offset or 0)
                ranges.append(((part.lineno, part.col_offset), end))
    return lambda line, column: any(start <= (line, column) < end for start, end in ranges)


def mutants_of(path: Path, kinds: dict[str, Any]) -> Iterator[Mutant]:
    """All mutants of a file."""
    code = path.read_text()
    lines, nodes, skip = code.splitlines(), list(ast_nodes(get_ast(code))), skipped(code)
    same: Counter[Any] = Counter()
    for name, kind in kinds.items():
        operator: Any = kind()
        places = [place for node in nodes for place in operator.mutation_positions(node)]
        for occurrence, ((line, column), _) in enumerate(places):
            text = lines[line - 1].strip()
            if not skip(line, column):
                file = path.relative_to(ROOT).as_posix()
                yield Mutant(file, name, occurrence, line, text, same[name, text])
            same[name, text] += 1


def in_order(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """All mutants in the order of the seed; a change of one file moves no mutant of another."""
    return sorted(mutants, key=lambda m: hashlib.sha256(f"{seed} {m.id}".encode()).digest())


def test(mutant: Mutant, coverage: Coverage) -> dict[str, Any]:
    """Run the tests that cover a mutant. Returns its result."""
    covering = coverage.tests(mutant.file, mutant.line)
    chosen, total = [], 0.0
    for name, seconds in sorted(covering.items(), key=lambda item: item[1]):
        total += seconds
        if total < SECONDS:
            chosen.append(name)
    source = mutant.source()
    changed = source.splitlines()[mutant.line - 1].strip()
    facts = {"id": mutant.id, **asdict(mutant), "changed": changed, "covering": len(covering),
             "tests": len(chosen)}  # fmt: skip
    if not chosen:
        return {**facts, "status": "not covered", "seconds": 0.0, "by": ""}
    module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    start = time.monotonic()
    limit = 60 + 5 * min(total, SECONDS)
    ended, failed = run_tests(chosen, module, source, limit)
    status = "timeout" if ended is None else "killed" if ended else "survived"
    return {**facts, "status": status, "seconds": round(time.monotonic() - start, 1), "by": failed}


def share(results: Iterable[dict[str, Any]]) -> str:
    """How many mutants were killed, in words."""
    counts = Counter(result["status"] for result in results)
    total, killed = sum(counts.values()), counts["killed"] + counts["timeout"]
    others = ", ".join(f"{counts[s]} {s}" for s in ("survived", "not covered") if counts[s])
    return f"{killed} of {total} mutants killed ({killed / max(1, total):.1%}); {others or 'all'}"


def reasons(page: str) -> dict[str, tuple[str, str, str]]:
    """The rows of the page of survivors by id: place, change, reason."""
    rows = re.findall(r"^\| `(\w{10})` \| (.*?) \| (.*) \| (.*?) \|$", page, re.M)
    return {name: (where, change, reason) for name, where, change, reason in rows}


def page_of(results: list[dict[str, Any]], seed: int, page: str) -> str:
    """The page of survivors: new rows get an empty reason, rows of killed ones stay."""
    rows = reasons(page)
    for result in results:
        if result["status"] in ("survived", "not covered"):
            change = f"`` {result['text']} `` → `` {result['changed']} ``".replace("|", "\\|")
            reason = rows.get(result["id"], ("", "", ""))[2]
            where = f"{result['file']}:{result['line']}"
            rows[result["id"]] = (where, change, reason or result["status"])
        elif result["id"] in rows and not rows[result["id"]][2].startswith("killed"):
            where, change, _ = rows[result["id"]]
            rows[result["id"]] = (where, change, f"killed by {result['by'] or 'a time limit'}")
    table = [f"| `{name}` | {' | '.join(row)} |" for name, row in sorted(rows.items())]
    head, *_ = page.partition("| id |")
    head = re.sub(r"^Last run: .*$", f"Last run: seed {seed}, {share(results)}.", head, flags=re.M)
    lines = ["| id | where | change | reason |", "| --- | --- | --- | --- |", *table]
    return head + "\n".join(lines) + "\n"


def save(results: list[dict[str, Any]]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1) + "\n")
    os.replace(temporary, RESULTS)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tests", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="run survivors again")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of files")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    deadline = time.monotonic() + 3600 * options.hours
    files = sorted({p for glob in MODULES for p in (ROOT / "torchcaps").glob(glob)})
    kinds = operators()
    all_mutants = [mutant for path in files for mutant in mutants_of(path, kinds)]
    inside = [m for m in all_mutants if any(fnmatch(m.file, glob) for glob in options.only)]
    chosen = in_order(inside, options.seed)[: options.count]
    print(f"{len(chosen)} of {len(inside)} mutants of {len(files)} files", flush=True)
    preload()
    tests = options.tests or sorted((ROOT / "tests").rglob("test_*.py"))
    coverage = Coverage(ROOT, files, [t.resolve() for t in tests], options.jobs, deadline)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    again, ids = ("survived", "not covered") if options.again else (), {m.id for m in all_mutants}
    done = {r["id"]: r for r in known if r["id"] in ids}
    waiting = [m for m in chosen if m.id not in done or done[m.id]["status"] in again]
    for result in forked(lambda m: test(m, coverage), waiting, options.jobs, deadline):
        done[result["id"]] = result
        save([*done.values()])
        print(f"{result['status']:11} {result['seconds']:6.1f} s  {result['file']}:"
              f"{result['line']}  {result['changed']}", flush=True)  # fmt: skip
    results = [done[m.id] for m in chosen if m.id in done]
    SURVIVORS.write_text(page_of(results, options.seed, SURVIVORS.read_text()))
    print(share(results))


if __name__ == "__main__":
    main()
