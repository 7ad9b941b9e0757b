"""Training steps of the masked capsule autoencoder on each data set's shape.

    python benchmarks/mcae.py [SET …] [--batch 256] [--record]

First the operations of one image: through the ConvMixer and the ViT, counted as Table 2 of the
paper does (patches and backbone; a multiplication and its addition are one), and through all of it.
Then forward, loss, backward, SGD; bf16, compiled, one CUDA graph: pretraining with the
global-routing decoder, and what its votes would take if they were written; finetuning. On a CPU:
one small step of each, to see it run.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from clock import arguments, clear, recorder, timed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.data import Batch
from torchcaps.models.mcae.model import MCAE
from torchcaps.models.registry import build
from torchcaps.papers.mcae.setting import SETTINGS, slug
from torchcaps.training.registry import get_recipe
from torchcaps.training.tasks import make_task

SHAPES = {"MNIST": (1, 28), "Fashion": (1, 28), "smallNORB": (1, 32), "CIFAR-10": (3, 32)}


def millions(model: MCAE) -> dict[str, float]:
    """Multiply-adds of one image through patches and backbone; with the capsules, as torch counts:
    two for each.
    """
    image = torch.rand(1, *model.config.image_shape)
    counts = []
    for part in (model.eval().tokens, model.encode):
        # the counter does not know the CPU's fused attention
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as made:
            part(image)
        counts.append(made.get_total_flops() / 1e6)
    return {"backbone_mmacs": round(counts[0] / 2, 2), "mflops": round(counts[1], 1)}


def task_of(recipe: str, column: str) -> Any:
    """The task of a recipe, for images of a data set's shape."""
    channels, size = SHAPES.get(column, (3, 64))
    chosen = get_recipe(recipe)
    model = build(replace(chosen.model, in_channels=channels, image_size=size))
    return make_task(model, chosen.task)


def stepper(task: Any, batch: int, device: str) -> Callable[[], None]:
    shape = task.model.config.image_shape
    data = Batch(torch.rand(batch, *shape, device=device), torch.zeros(batch, device=device).long())
    made: Any = torch.compile(task) if device == "cuda" else task
    optimizer = torch.optim.SGD(task.parameters(), 0.1, 0.9, fused=device == "cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = made(data)["loss"]
        loss.backward()
        optimizer.step()

    return step


def training(task: Any, column: str, batch: int, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model: MCAE = task.model
    c = model.options
    ms, peak = timed(stepper(task.to(device).train(), batch, device))
    row = {"op": f"training step, mcae {c.stage}, {column}", "ms": round(ms, 3),
           "shape": "x".join(map(str, (batch, *c.image_shape))), "peak_mb": round(peak, 1),
           "dtype": "bf16" if device == "cuda" else "fp32", "impl": "ours",
           "images_per_s": round(1000 * batch / ms)}  # fmt: skip
    if c.stage == "pretrain":
        votes = batch * model.length**2 * c.num_types * c.decoder_pose_dim
        row["votes_would_take_mb"] = round(2 * votes / 1e6)
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = options.batch if device == "cuda" else 2
    done = recorder(options, device)
    for column in options.sets:
        name = slug(column)
        rows = ("table1/{}-scratch", "table1/{}-large-scratch", "ablations/vit-{}-scratch")
        for row in rows:
            model: MCAE = task_of(f"mcae/{row.format(name)}", column).model
            shape = "x".join(map(str, model.config.image_shape))
            shape += f", patches of {model.options.patch_size}"
            op = f"operations of an image, mcae {model.options.backbone}, {column}"
            done({"op": op, "shape": shape, "impl": "ours", **millions(model)})
        for recipe in (f"mcae/pretrain/{name}", f"mcae/table1/{name}-scratch"):
            clear()
            done(training(task_of(recipe, column), column, batch, device))


if __name__ == "__main__":
    main()
