"""Every family goes through torch.export and ONNX as it is, and answers the same for any batch."""

import io
import json
from functools import cache
from importlib.metadata import version

import pytest
import torch

import torchcaps
from tests.models.test_registry import MODELS, small
from torchcaps.errors import TorchcapsError, TorchcapsWarning
from torchcaps.models import Output
from torchcaps.models.export import export
from torchcaps.models.registry import model_config

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec.*:FutureWarning", "ignore::DeprecationWarning"
)  # torch's own
onnxruntime = pytest.importorskip("onnxruntime")
ONE_EACH = {model_config(name).family: name for name in reversed(MODELS)}
NAMES = sorted(
    {*ONE_EACH.values(), "mcae-pretrain", "mcae", "mcae-vit", "sr-capsnet", "inverted-simple"}
)
BATCHES = (1, 7, 64)


def disturbed(name):
    """A model with noise on every weight: self-routing starts at zero and tells nothing then."""
    if model_config(name).family == "timm":
        pytest.skip("timm's networks are timm's to export")
    model = small(name).eval()
    noise = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.1 * torch.randn(tensor.shape, generator=noise))
        for boost in (t for n, t in model.named_buffers() if n.endswith("boost")):
            boost.copy_(1 + torch.arange(len(boost)))  # no near ties, which rounding would turn
    return model


@cache
def exported(name):
    """The model and its program, which both tests below look at."""
    model = disturbed(name)
    batch = torch.export.Dim("batch", min=1, max=4096)
    shapes = ({0: batch},)
    return model, torch.export.export(model, (torch.rand(2, 1, 24, 24),), dynamic_shapes=shapes)


def leaves(output):
    return [t for t in torch.utils._pytree.tree_leaves(output) if t is not None]


@pytest.mark.parametrize("name", NAMES)
def test_torch_export_takes_a_bare_model_and_any_batch(name):
    model, program = exported(name)
    for batch in BATCHES:
        images = torch.rand(batch, 1, 24, 24)
        found, wanted = program.module()(images), model(images)
        assert isinstance(found, Output) and len(found.layers) == len(wanted.layers)
        for one, two in zip(leaves(found), leaves(wanted), strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file).module()(images)
    torch.testing.assert_close(leaves(again), leaves(wanted), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_onnx_answers_like_the_model(name):
    model, program = exported(name)
    program = torch.onnx.export(program, dynamo=True, opset_version=18, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (given,) = session.get_inputs()
    for batch in BATCHES:
        images = torch.rand(batch, 1, 24, 24)
        found = session.run(None, {given.name: images.numpy()})
        wanted = leaves(model(images))
        assert len(found) == len(wanted)
        for one, two in zip(found, wanted, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), two, atol=1e-4, rtol=1e-4)


def test_an_onnx_file_describes_itself(tmp_path):
    model = torchcaps.create_model(
        "convnet-avg-small", image_size=20, image_width=24, in_channels=3
    )
    model.class_names = tuple(f"class {n}, é" for n in range(10))
    export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    assert session.get_inputs()[0].shape == ["batch", 3, 20, 24]
    assert {output.shape[0] for output in session.get_outputs()} == {"batch"}
    found = session.get_modelmeta().custom_metadata_map
    assert json.loads(found["class_names"]) == list(model.class_names)
    assert found["torchcaps_version"] == version("torchcaps") and found["input_range"] == "0..1"
    assert "RGB" in found["preprocessing"] and "cover 20x24" in found["preprocessing"]
    export(model, tmp_path / "model.pt2", "torch")
    extra = {"torchcaps.json": ""}
    torch.export.load(tmp_path / "model.pt2", extra_files=extra)
    assert json.loads(extra["torchcaps.json"]) == found


def test_a_file_of_a_model_with_a_range_clips(tmp_path):
    model = torchcaps.create_model("convnet-avg-small").eval()
    model.value_range = (0.0, 4095.0)
    with pytest.warns(TorchcapsWarning, match=r"from 0\.\.4095 to 0\.\.1 first"):
        export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    found = session.get_modelmeta().custom_metadata_map
    assert found["file_range"] == "0..4095" and "file_range" in found["preprocessing"]
    images = 4 * torch.rand(2, 1, 28, 28) - 1
    (answer, *_) = session.run(["logits"], {"images": images.numpy()})
    expected = model(images.clamp(0, 1)).logits
    torch.testing.assert_close(torch.from_numpy(answer), expected, atol=1e-4, rtol=1e-4)


def test_a_model_that_answers_nan_is_not_exported(tmp_path):
    model = torchcaps.create_model("convnet-avg-small").eval()
    next(model.parameters()).data.fill_(torch.nan)
    with pytest.raises(TorchcapsError, match="differs from the model by inf"):
        export(model, tmp_path / "model.pt2", "torch")


def test_what_cannot_be_exported_says_so():
    model = torchcaps.create_model("inverted-simple", num_iters="converged").eval()
    with pytest.raises(TorchcapsError, match="Set a fixed number of passes"):
        torch.export.export(model, (torch.rand(2, 3, 32, 32),))
