"""Fits of a support vector machine: the kernel on a GPU beside scikit-learn on all cores.

    python benchmarks/svm.py [--images 20000] [--record]

80 principal components of MNIST's training digits, C = 10, a kernel as wide as they are. Both
machines read 10,000 test digits in the same run, and no ratio is printed where they disagree on
more than one in a thousand. On a CPU: scikit-learn alone, on 2,000 digits.
"""

import time

import torch
from clock import arguments, recorder

from torchcaps.data import load
from torchcaps.metrics.probes import SVM
from torchcaps.metrics.probes.metric import principal_components, projected


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    count = options.images if gpu else 2_000
    done = recorder(options, device, exact=True)
    data = load("mnist")
    x = data.train.images[:count].to(device).flatten(1).float() / 255
    tested = data.test.images.to(device).flatten(1).float() / 255
    components = principal_components(x, 80)
    x, tested = projected(x, components), projected(tested, components)
    labels = data.train.labels[:count].to(device)
    said, seconds = {}, {}
    if gpu:  # the first one compiles
        SVM(10.0, 0.0, impl="triton").fit(x[:500], labels[:500])
    for impl in ("triton", "scikit-learn") if gpu else ("scikit-learn",):
        began = time.perf_counter()
        machine = SVM(10.0, 0.0, impl=impl).fit(x, labels)
        if gpu:
            torch.cuda.synchronize()
        seconds[impl] = time.perf_counter() - began
        said[impl] = machine.predict(tested.double())
        right = (said[impl] == data.test.labels.to(device)).float().mean()
        row = {"op": "fit of a support vector machine", "shape": f"{count}x80, 45 pairs",
               "impl": impl, "dtype": "fp64", "ms": round(1000 * seconds[impl], 1),
               "accuracy": round(float(right), 4)}  # fmt: skip
        if len(said) == 2:
            apart = float((said["triton"] != said["scikit-learn"]).float().mean())
            row["disagree"] = round(apart, 5)
            if apart <= 1e-3:
                row["ratio"] = round(seconds["scikit-learn"] / seconds["triton"], 1)
        done(row)


if __name__ == "__main__":
    main()
