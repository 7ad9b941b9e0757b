"""Tables of README and docs that no command prints: models, routings, and one table of results.

python scripts/overview.py models|routings|results [PREFIX]

PREFIX is the path from the page to the folder of the site, docs/ by default.
"""

import sys
from typing import NamedTuple

from torchcaps.layers.routers import ROUTERS
from torchcaps.models.hub import pretrained_names
from torchcaps.models.registry import MODELS
from torchcaps.papers.tables import cells, get_table


class Family(NamedTuple):
    """What a row of the table of models says; the names come from the registry."""

    title: str
    paper: str
    routing: str
    labels: str
    page: str
    names: tuple[str, ...]


FAMILIES = (
    Family("CapsNet", "Sabour et al. 2017, Gu & Tresp 2020", "dynamic, uniform", "yes",
           "papers/robustness.md", ("capsnet", "capsnet-small", "capsnet-modern", "aff-capsnet")),
    Family("EM capsules", "Hinton et al. 2018", "EM", "yes",
           "papers/robustness.md", ("em-capsnet", "em-capsnet-small")),
    Family("Self-routing", "Hahn et al. 2019", "self", "yes", "papers/mcae.md", ("sr-capsnet",)),
    Family("Inverted attention", "Tsai et al. 2020", "inverted", "yes", "papers/inverted.md",
           ("inverted-resnet", "inverted-simple", "inverted-small")),
    Family("Multi-view", "torchcaps", "inverted", "yes", "papers/robustness.md",
           ("view-capsnet",)),
    Family("Capsule head", "torchcaps", "self, or any", "yes", "how-to/photographs.md",
           ("capsule-head",)),
    Family("Masked autoencoder", "Everett et al. 2024", "self", "pretraining without",
           "papers/mcae.md", ("mcae-pretrain", "mcae-pretrain-small", "mcae")),
    Family("Sparse capsules", "Rawlinson et al. 2018", "dynamic", "no", "papers/sparse.md",
           ("sparse", "sparse-small")),
    Family("Generative capsules", "Smith et al. 2020", "inference", "no", "papers/generative.md",
           ("generative", "generative-one-small")),
    Family("Stacked autoencoder", "Kosiorek et al. 2019", "set transformer", "no",
           "papers/generative.md", ("scae",)),
    Family("Baselines", "the papers'", "not routed", "both", "reference/models.md",
           ("convnet-modern", "convnet-avg", "convnet-avg-small", "resnet18", "vote-head",
            "mlp-head", "linear-head", "vae", "autoencoder")),
)  # fmt: skip


class Fact(NamedTuple):
    """What a routing can do; `poses` as its paper uses them."""

    paper: str
    poses: str
    windows: str
    fused: str


ROUTINGS = {
    "dynamic": Fact("Sabour et al. 2017", "vector, matrix", "yes", "yes"),
    "uniform": Fact("Gu & Tresp 2020", "vector, matrix", "yes", "yes"),
    "inverted": Fact("Tsai et al. 2020", "vector, matrix", "yes", "yes"),
    "em": Fact("Hinton et al. 2018", "vector, matrix", "yes", "yes"),
    "self": Fact("Hahn et al. 2019", "vector", "yes", "yes"),
    "vb": Fact("Ribeiro et al. 2020", "vector, matrix", "yes", "no"),
}

Cell = tuple[str, str, str, str]
"""Paper, table, row, column of a number; the protocol is ours."""


class Result(NamedTuple):
    task: str
    names: tuple[str, str]
    """Of the capsule model, and of the strongest baseline without capsules."""
    capsules: Cell
    baseline: Cell
    printed: Cell | None
    """Where the paper's best capsule value stands, if it has one."""
    page: str


RESULTS = (
    Result("MNIST, shifted", ("View-CapsNet", "same views, no capsules"),
           ("robustness", "best", "best", "MNIST"),
           ("robustness", "best", "maximum in place of capsules, wandering views", "MNIST"),
           ("robustness", "table1", "Aff-CapsNet", "MNIST"), "robustness"),
    Result("affNIST (generated)", ("View-CapsNet", "same views, no capsules"),
           ("robustness", "best", "best", "affNIST"),
           ("robustness", "best", "maximum in place of capsules, wandering views", "affNIST"),
           ("robustness", "table1", "Aff-CapsNet", "affNIST"), "robustness"),
    Result("digits rotated by any angle", ("CapsNet-Modern", "same ConvNet, max pooling"),
           ("robustness", "turned", "capsules", "180, drawn of 16"),
           ("robustness", "turned", "maximum, binary cross entropy", "180, surest of 16"),
           None, "robustness"),
    Result("CIFAR-10", ("inverted attention", "ResNet-18, fewer epochs"),
           ("inverted", "best", "best", "CIFAR-10"),
           ("inverted", "best", "ResNet-18", "CIFAR-10"),
           ("inverted", "best", "inverted, ResNet", "CIFAR-10"), "inverted"),
    Result("Imagenette, 64 px", ("MCAE", "ResNet-18"),
           ("mcae", "table1", "MCAE", "Imagenette"),
           ("mcae", "table1", "ResNet-18, small images, 100 epochs", "Imagenette"),
           ("mcae", "table1", "MCAE", "Imagenette"), "mcae"),
    Result("affNIST, no labels, SVM", ("sparse capsules", "raw pixels"),
           ("sparse", "table1", "SPARSECAPS", "affNIST (a)"),
           ("sparse", "table1", "raw pixels", "affNIST (a)"),
           ("sparse", "table1", "SPARSECAPS", "affNIST (a)"), "sparse"),
    Result("rotated digits, no labels, probe", ("generative capsules", "VAE, same rotations"),
           ("generative", "best", "best", "t0, A0"),
           ("generative", "best", "VAE with frames", "t0, A0"),
           ("generative", "table1", "t0, A0", "180"), "generative"),
)  # fmt: skip


def _table(header: str, rows: list[list[str]]) -> str:
    columns = header.split(" | ")
    lines = [f"| {header} |", "|" + " --- |" * len(columns)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def models(site: str) -> str:
    """Families of models; * marks names with pretrained weights."""
    weights = {name.partition(".")[0] for name in pretrained_names()}
    rows = []
    for family in FAMILIES:
        names = [f"`{MODELS[n].name}`{'*' if n in weights else ''}" for n in family.names]
        link = f"[{family.page.rpartition('/')[2].removesuffix('.md')}]({site}{family.page})"
        rows.append(
            [family.title, ", ".join(names), family.paper, family.routing, family.labels, link]
        )
    return _table("family | models | paper | routing | labels | page", rows)


def routings(site: str) -> str:
    rows = [
        [f"`{name}`", f"`{ROUTERS[name].__name__}`", *fact,
         f"[routing]({site}background/routing.md)"]
        for name, fact in ROUTINGS.items()
    ]  # fmt: skip
    return _table("routing | class | paper | poses | windows | fused on a GPU | page", rows)


def _cell(place: Cell) -> dict:
    paper, table, row, column = place
    (cell,) = [
        c
        for c in cells(get_table(paper, table))
        if c["row"] == row and c["column"] == column and c["protocol"] == "ours"
    ]
    return cell


def _number(place: Cell, name: str) -> str:
    """Our number in per cent, with its spread over seeds and the number of runs."""
    cell = _cell(place)
    scale = 100 if cell["mean"] < 1 else 1
    spread = f" ± {scale * cell['std']:.1f}" if cell["std"] is not None else ""
    return f"{name}: {scale * cell['mean']:.1f}{spread} ({cell['n']})"


def _printed(place: Cell | None) -> str:
    if place is None:
        return "not tested"
    value = _cell(place)["paper_value"]
    return f"{(100 if value < 1 else 1) * value:.1f}"


def results(site: str) -> str:
    """One row for each task; every cell has a number."""
    rows = [
        [
            r.task, _number(r.capsules, r.names[0]), _number(r.baseline, r.names[1]),
            _printed(r.printed), f"[{r.page}]({site}papers/{r.page}.md)",
        ]
        for r in RESULTS
    ]  # fmt: skip
    return _table("task | capsules | strongest baseline | paper's capsules | page", rows)


TABLES = {"models": models, "routings": routings, "results": results}


def overview(name: str, site: str = "docs/") -> str:
    return TABLES[name](site)


if __name__ == "__main__":
    print(overview(*sys.argv[1:]))
