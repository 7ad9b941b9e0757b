"""Training steps of one source folder, timed one by one on request; before_after.py runs it.

    python benchmarks/steps.py TREE GROUP

Captures the steps of a group as CUDA graphs and prints their names as a JSON list. Then, for each
name read from standard input, prints the milliseconds of a step. The benchmarks of TREE say what a
step is, so that a step of an older version is that version's own.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

CONVNETS = ("convnet-avg", "convnet-fc", "convnet-r", "convnet-cr", "convnet-modern", "resnet18")
GROUPS = ("models", "large", "across", "inverted", "mcae", "sparse", "generative", "convnets")


def stack_steps(names: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], Any]]]:
    import models

    for name in names:
        yield name, lambda name=name: models.stepper(name, "bf16")


def inverted_steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    import inverted

    from torchcaps.models import create_model

    def build(passes: int) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = create_model("inverted-resnet", num_iters=passes).cuda()
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore
        compiled = torch.compile(model)
        return inverted.stepper(lambda x: compiled(x).logits, model, 128, "cuda", True)

    for passes in (1, 2, 3):
        yield f"inverted-resnet, {passes} passes", lambda passes=passes: build(passes)


def mcae_steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    import mcae

    def build(recipe: str) -> Callable[[], Any]:
        return mcae.stepper(mcae.task_of(recipe, "CIFAR-10").cuda().train(), 256, "cuda")

    for recipe in ("mcae/pretrain/cifar10", "mcae/table1/cifar10-scratch"):
        yield recipe, lambda recipe=recipe: build(recipe)


def sparse_steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    import clock
    import sparse

    def build(name: str) -> Callable[[], Any]:
        impl, fields, masks = sparse.JOBS[name]
        task = sparse.make("cuda", impl, fields, masks).train()
        return clock.training_step(task, 128, "cuda", True)

    for name in ("sparse", "sparse/best"):
        yield name, lambda name=name: build(name)


def generative_steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    import clock
    import generative

    def build(name: str) -> Callable[[], Any]:
        model, fields, _ = generative.JOBS[name]
        return clock.training_step(generative.make(model, fields, "cuda"), 128, "cuda", True)

    for name in ("generative", "generative-framed", "scae", "vae"):
        yield name, lambda name=name: build(name)


def convnet_steps() -> Iterator[tuple[str, Callable[[], Any]]]:
    import clock

    from torchcaps.models import create_model

    try:
        from torchcaps.training.tasks import Classify, make_task
    except ModuleNotFoundError:  # before 0.1.0
        from torchcaps.train.tasks import Classify, make_task  # pyright: ignore

    def build(name: str) -> Callable[[], Any]:
        torch.manual_seed(0)
        model = create_model(name, image_size=40, in_channels=1, num_classes=10).cuda()
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore
        task = make_task(model, Classify(loss="cross_entropy"))
        return clock.training_step(task, 128, "cuda", True)

    for name in CONVNETS:
        yield name, lambda name=name: build(name)


def steps_of(group: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    stacks = {"models": ("capsnet-28", "capsnet-40", "sr", "em"), "across": ("em-across",),
              "large": ("deep", "capsnet-224")}  # fmt: skip
    if group in stacks:
        return stack_steps(stacks[group])
    return {"inverted": inverted_steps, "mcae": mcae_steps, "sparse": sparse_steps,
            "generative": generative_steps, "convnets": convnet_steps}[group]()  # fmt: skip


def captured(step: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def main() -> None:
    tree, group = sys.argv[1:]
    sys.path[:0] = [tree, f"{tree}/benchmarks"]
    os.chdir(tree)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    import clock

    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    ready = {}
    for name, build in steps_of(group):
        step = build()
        ready[name] = (captured(step), step)  # the step keeps what the graph uses
    print(json.dumps(list(ready)), file=answers, flush=True)
    for line in sys.stdin:
        replay = ready[line.strip()][0].replay
        repeats = max(3, min(200, int(60 / clock._elapsed(replay, 2))))
        print(clock._elapsed(replay, repeats), file=answers, flush=True)


if __name__ == "__main__":
    main()
