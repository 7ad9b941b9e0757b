"""The support vector machine matches scikit-learn, and its decisions have a gradient."""

import numpy as np
import pytest
import torch
from sklearn.svm import SVC

from torchcaps.errors import TorchcapsError
from torchcaps.metrics.probes import SVM, KMeans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def blobs(n=240, classes=4, spread=1.0):
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    centres = 2 * torch.randn(classes, 5, generator=generator)
    return centres[labels] + spread * torch.randn(n, 5, generator=generator), labels


@pytest.mark.parametrize("impl", ["scikit-learn", "triton"])
@pytest.mark.parametrize("gamma", [0.1, 0.0])
def test_svm_matches_scikit_learn(gamma, impl):
    """Without a GPU the kernel runs in Triton's interpreter."""
    if impl == "triton":
        pytest.importorskip("triton")
    x, y = blobs(n=240 if impl == "scikit-learn" else 120, classes=3, spread=1.5)
    known = len(x) * 3 // 4
    svm = SVM(c=10.0, gamma=gamma, jobs=1, impl=impl)
    ours = svm.fit(x[:known].to(DEVICE), y[:known].to(DEVICE)).to("cpu", torch.float64)
    assert {ours.vectors.dtype, ours.weights.dtype, ours.intercepts.dtype} == {torch.float64}
    theirs = SVC(C=10.0, gamma=gamma or "scale", decision_function_shape="ovo")
    theirs.fit(x[:known].numpy(), y[:known].numpy())
    assert (ours.predict(x[known:]).numpy() == theirs.predict(x[known:].numpy())).all()
    expected = theirs.decision_function(x[known:].numpy())  # positive: the first of a pair
    np.testing.assert_allclose(-ours.decide(x[known:]).numpy(), expected, atol=2e-2)
    assert ours.score(x[known:], y[known:]) == pytest.approx(
        theirs.score(x[known:].numpy(), y[known:].numpy())
    )


def test_linearly_separable_classes():
    """All coefficients can lie at a bound; the intercept is then the middle."""
    pytest.importorskip("triton")
    x = torch.tensor([[0.0], [0.1], [3.0], [3.1]])
    y = torch.tensor([0, 0, 1, 1])
    for c in (0.01, 100.0):
        both = [
            SVM(c=c, gamma=0.5, jobs=1, impl=impl).fit(x.to(DEVICE), y.to(DEVICE)).to("cpu")
            for impl in ("scikit-learn", "triton")
        ]
        torch.testing.assert_close(*(m.decide(x) for m in both), atol=2e-3, rtol=1e-3)


def test_pairs_are_fitted_in_processes_with_progress():
    x, y = blobs()
    progress = []
    apart = SVM(jobs=2, progress=lambda *p: progress.append(p)).fit(x, y)
    assert progress == [(n, 6) for n in range(1, 7)]
    together = SVM(jobs=1).fit(x, y)
    torch.testing.assert_close(apart.weights, together.weights)


def test_scores_can_be_differentiated_and_agree_with_votes():
    x, y = blobs()
    machine = SVM(jobs=1).fit(x, y).to("cpu")
    points = x[:40].clone().requires_grad_()
    scores = machine.scores(points)
    assert (scores.argmax(1) == machine.predict(x[:40])).float().mean() > 0.9
    scores[:, 0].sum().backward()
    assert points.grad.abs().sum() > 0


def test_labels_need_not_begin_at_zero():
    x, y = blobs(classes=3)
    machine = SVM(jobs=1).fit(x, y + 4)
    assert set(machine.predict(x).tolist()) <= {4, 5, 6}
    with pytest.raises(TorchcapsError, match="two classes"):
        SVM(jobs=1).fit(x, torch.zeros(len(x)).long())


def test_clusters_are_matched_to_classes():
    x, y = blobs(spread=0.1)
    assert KMeans().fit(x, y).score(x, y) == 1.0
    lot = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
    assert KMeans().fit(x, lot).score(x, lot) < 0.5
