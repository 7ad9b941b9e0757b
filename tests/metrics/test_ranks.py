import math

import numpy as np
import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis.plots import get_plot
from torchcaps.metrics.base import prepare
from torchcaps.metrics.equivariance import explained_variance
from torchcaps.metrics.ranks import label_entropy, rank_numbers, ranked
from torchcaps.models.sparse.figures import ranked_layers, support_by_rank
from torchcaps.models.sparse.mask import support_of

TINY = {"backbone": "norm", "num_types": 2, "hidden": (16,), "num_caps": (5,)}


@pytest.fixture
def model():
    return torchcaps.create_model("sparse", **TINY).eval()


def test_a_sparse_model_ranks_itself_and_others_are_ranked(model, digits):
    part = digits.test[slice(0, 20)]
    model.masks[0].boost[3] = 100.0
    _, rank = ranked(model, part)
    assert (rank[:, 3] == 0).all()
    capsnet = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    support, _ = ranked(capsnet, part)
    output = capsnet.encode(part.batch(slice(0, 20)).images, coupling=True)
    torch.testing.assert_close(support, support_of(output.coupling, (6, 6, 2)))


def test_numbers_of_ranks():
    support = torch.tensor([[4.0, 2.0, 1.0, 1.0], [2.0, 4.0, 1.0, 1.0]])
    assert support_by_rank(support).tolist() == [1.0, 0.5, 0.25, 0.25]
    rank = torch.tensor([[0, 1], [0, 1], [1, 0], [1, 0]])
    assert label_entropy(rank, torch.tensor([0, 0, 1, 1])) == pytest.approx(0)
    assert label_entropy(rank, torch.tensor([0, 1, 0, 1])) == pytest.approx(math.log(2))


def test_dead_capsules_and_entropy(model, digits):
    model.masks[0].boost[1] = 1000.0
    numbers = rank_numbers(model, digits.test[slice(0, 20)])
    assert numbers["dead"] == 4 and numbers["first_entropy"] == pytest.approx(0)
    assert 0 < numbers["support_ratio"] <= 1


def test_every_layer_of_a_stack_has_ranks(digits):
    model = torchcaps.create_model("sparse", **{**TINY, "num_caps": (7, 5)}).eval()
    part = digits.test[slice(0, 20)]
    lower, upper = ranked_layers(model, part)
    assert lower[0].shape == (20, 7) and upper[0].shape == (20, 5)
    assert torch.equal(ranked(model, part)[1], upper[1])
    numbers = rank_numbers(model, part)
    curve = support_by_rank(lower[0])
    assert numbers["lower_support_ratio"] == pytest.approx(float(curve[3]))
    view = get_plot("support")
    arrays = view.compute(model, digits)
    assert [len(curve) for curve in arrays.values()] == [7, 5]
    names = [line.get_label() for line in view.figure({"run": arrays}).axes[0].get_lines()]
    assert names[:2] == ["run, layer 1", "run, layer 2"]


def test_a_linear_map_is_explained_and_noise_is_not():
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(400, 3, generator=generator)
    turn = torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    assert explained_variance(before, before @ turn + 0.3) > 0.999
    assert explained_variance(before, torch.randn(400, 3, generator=generator)) < 0.1


def test_metrics_of_a_sparse_model(model, digits):
    few = torchcaps.data.Dataset("few", *(digits.test[slice(0, 80)],) * 3, digits.classes)
    for text in ("ranks", "equivariance", "reconstruction", "svm,jobs=1,limit=50", "kmeans"):
        (taken,) = prepare([text], few, "few")
        taken.check(model)
        lines = taken.evaluate(model)
        assert lines and all(line["metric"] in taken.metric.values for line in lines)


def test_probes_learn_from_one_set_and_are_scored_on_another(model, digits):
    (taken,) = prepare(
        ["linear:rotated:digits,degrees=20,on=digits,fit=train+val"], digits, "digits"
    )
    (line,) = taken.evaluate(model)
    assert line["fit"] == "digits train+val" and line["data"] == "rotated:digits,degrees=20"
    (own,) = prepare(["svm,fit=test,scored=100,jobs=1"], digits, "digits")
    (line,) = own.evaluate(model)
    assert line["n"] == 100 and line["fit"] == "test"
    assert len(own.metric.learned.vectors) <= 400


def test_one_fit_serves_two_tests_and_encodings_are_kept(model, digits, tmp_path):
    memory = {}
    texts = ["linear,limit=300", "linear:rotated:digits,on=digits,limit=300"]
    cpu = torch.device("cpu")
    first, second = (t.fresh(cpu, tmp_path, memory) for t in prepare(texts, digits, "digits"))
    first.evaluate(model)
    files = list(tmp_path.iterdir())
    assert len(files) == 1 and len(memory) == 1
    second.evaluate(model)
    assert second.metric.learned is first.metric.learned and len(memory) == 1
    with torch.no_grad():  # a kept encoding is not computed again
        model.latent[0].weight.zero_()
    again = first.fresh(cpu, tmp_path, {})
    again.evaluate(model)
    assert list(tmp_path.iterdir()) == files
    assert torch.equal(again.metric.learned.weight, second.metric.learned.weight)


def test_single_capsules_decode_as_in_the_model(model, digits):
    found = get_plot("alone").compute(model, digits)
    assert found["alone"].shape == found["without"].shape == (5, 1, 28, 28)
    with torch.no_grad():
        image = torch.from_numpy(found["image"])[None]
        poses = model.encode(image).decoder_input
        expected = model.decode(poses * torch.eye(5)[2][None, :, None])[0].numpy()
    np.testing.assert_allclose(found["alone"][2], expected, atol=1e-6)
    capsnet = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    assert get_plot("alone").compute(capsnet, digits)["alone"].shape == (10, 1, 28, 28)
