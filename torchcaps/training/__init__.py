"""Training: a recipe in, a run folder out. `torchcaps.fit(model, data)` is the way in."""
