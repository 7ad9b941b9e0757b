"""A training step of inverted attention with the ResNet backbone, against passes.

    python benchmarks/inverted.py [--passes 1 2 3 5] [--record]

Batch 128, CIFAR-10's shape: forward, loss, backward, SGD. Ours: bf16, compiled, one CUDA graph; and
the same model in eager PyTorch with written votes (tf32), every pass of every layer computed.
`converged` is eager (its number of passes depends on the data). On a CPU: batch 4, to see it run.
"""

from collections.abc import Callable
from typing import Any

import torch
from clock import arguments, clear, recorder, timed
from torch import Tensor, nn

from torchcaps.models import create_model
from torchcaps.models.inverted import Inverted

PUBLIC = {1: 41.5, 2: 58.2, 3: 116.0}
"""Milliseconds of public code on an H200 (tf32, eager); docs/background/kernels.md."""
COMPILED = {2: 11.7}
"""Of its strongest form under torch.compile."""


class Everything(nn.Module):
    """The model as one would write it: eager, votes in memory, no pass left out."""

    def __init__(self, model: Inverted, passes: int):
        super().__init__()
        self.model, self.passes = model, passes
        for layer in model.layers:
            layer.impl = "reference"  # pyright: ignore

    def forward(self, images: Tensor) -> Tensor:
        model = self.model
        primary = model.primary_norm(model.primary(model.backbone(model.normalize(images))))
        poses = [primary]
        for number in range(len(model.layers)):
            poses.append(model.attend(number, poses[-1], None).poses)
        for _ in range(self.passes - 1):
            numbers = range(len(model.layers))
            moved = [model.attend(n, poses[n], poses[n + 1]).poses for n in numbers]
            poses = [primary, *moved]
        return model.head(poses[-1]).squeeze(-1)


def stepper(
    run: Callable[[Tensor], Tensor], model: nn.Module, batch: int, device: str, bf16: bool
) -> Callable[[], None]:
    images = torch.rand(batch, 3, 32, 32, device=device)
    labels = torch.randint(10, (batch,), device=device)
    fused = device == "cuda"
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, fused=fused)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            logits = run(images)
        nn.functional.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


def rows(passes: int | str, device: str, batch: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    made = create_model("inverted-resnet", num_iters=passes).to(device)
    made = made.to(memory_format=torch.channels_last)  # pyright: ignore
    found = []
    jobs = [("ours", "bf16"), ("eager, votes written", "tf32")]
    for impl, dtype in jobs if passes != "converged" else jobs[:1]:
        clear()
        compiled = impl == "ours" and device == "cuda" and passes != "converged"
        if impl == "ours":
            module = torch.compile(made) if compiled else made
            step = stepper(lambda x, m=module: m(x).logits, made, batch, device, dtype == "bf16")
        else:
            assert isinstance(made, Inverted) and isinstance(passes, int)
            step = stepper(Everything(made, passes), made, batch, device, False)
        ms, peak = timed(step, graph=compiled)
        row = {"op": "training step, inverted-resnet", "shape": f"{batch}x3x32x32",
               "passes": passes, "dtype": dtype, "impl": impl, "ms": round(ms, 3),
               "peak_mb": round(peak, 1)}  # fmt: skip
        if impl == "ours" and isinstance(passes, int) and device == "cuda":
            for name, table in (("ratio_public", PUBLIC), ("ratio_public_compiled", COMPILED)):
                if passes in table:
                    row[name] = round(table[passes] / ms, 1)
        found.append(row)
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--passes", nargs="*", default=["1", "2", "3", "4", "5", "converged"])
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    done = recorder(options, device)
    for said in options.passes:
        passes = said if said == "converged" else int(said)
        for row in rows(passes, device, 128 if device == "cuda" else 4):
            done(row)


if __name__ == "__main__":
    main()
