"""How runs learn: loss and accuracy after each epoch, side by side (`mcae`, Figure 6)."""

from matplotlib.figure import Figure

from torchcaps.train.run import Run


def draw_curves(runs: dict[str, Run]) -> Figure:
    """Training loss on the left, validation accuracy on the right; unfinished runs too."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, run in runs.items():
        lines = run.metrics()
        epochs = [line["epoch"] + 1 for line in lines]
        left.plot(epochs, [line["train_loss"] for line in lines], label=name)
        split = run.recipe().stop_on
        if lines and f"{split}_accuracy" in lines[0]:
            shown = name if split == "val" else f"{name} (test split)"
            right.plot(epochs, [100 * line[f"{split}_accuracy"] for line in lines], label=shown)
        for probe in ("linear", "knn"):  # of pretraining
            if lines and (key := f"{split}_{probe}_accuracy") in lines[0]:
                values = [100 * line[key] for line in lines]
                right.plot(epochs, values, label=f"{name}, {probe} probe")
    left.set(xlabel="epoch", ylabel="training loss", yscale="log")
    right.set(xlabel="epoch", ylabel="validation accuracy, %")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(frameon=False)
    return figure
