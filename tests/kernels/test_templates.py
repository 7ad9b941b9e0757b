"""Templates placed by the kernel against hat functions in float64: images and every gradient."""

import pytest
import torch

from tests.kernels.cases import DEVICE
from torchcaps.errors import TorchcapsError
from torchcaps.layers.templates import Templates, warped

pytest.importorskip("triton")
# images, parts, channels, side of a template and of the canvas
SIZES = [(2, 3, 2, 5, 11), (1, 2, 4, 12, 13), (2, 2, 1, 17, 7), (3, 5, 2, 11, 17)]


def numbers(sizes, scale=0.6):
    batch, parts, channels, size, side = sizes
    if DEVICE == "cuda":  # uninitialised memory is NaN first, so that nothing unwritten passes
        del [torch.full((1 << 22,), torch.nan, device=DEVICE)][:]
    g = torch.Generator().manual_seed(sum(sizes))
    templates = torch.rand(parts, channels, size, size, generator=g)
    poses = scale * torch.randn(batch, parts, 2, 3, generator=g)
    upstream = torch.randn(batch, parts, channels, side, side, generator=g)
    return [t.to(DEVICE) for t in (templates, poses, upstream)]


def drawn(templates, poses, upstream, impl):
    templates, poses = (t.detach().clone().requires_grad_() for t in (templates, poses))
    image = warped(templates, poses, upstream.shape[-1], impl=impl)
    return image, *torch.autograd.grad((image * upstream).sum(), (templates, poses))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("scale", [0.6, 30.0], ids=["near", "far"])
def test_image_and_every_gradient(sizes, scale):
    tensors = numbers(sizes, scale)
    for kernel, reference in zip(
        drawn(*tensors, "triton"),
        drawn(*(t.double() for t in tensors), "reference"),
        strict=True,
    ):
        off = (kernel.double() - reference).norm() / reference.norm().clamp_min(1e-9)
        assert kernel.shape == reference.shape and off < 5e-5


def test_opcheck():
    templates, poses, _ = numbers(SIZES[0])
    arguments = (templates.requires_grad_(), poses.requires_grad_(), 11)
    torch.library.opcheck(torch.ops.torchcaps.place.default, arguments)


def test_compile_in_one_graph(monkeypatch):
    import torchcaps.layers.templates as module

    layer = Templates(3, 5, 1, 11).to(DEVICE)
    poses, present = 0.6 * torch.randn(2, 3, 2, 3, device=DEVICE), torch.rand(2, 3, device=DEVICE)
    plain = layer(poses, present)

    def by_kernel(*arguments):
        return warped(*arguments, impl="triton")

    monkeypatch.setattr(module, "warped", by_kernel)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(poses, present)
    torch.testing.assert_close(compiled, plain)


def test_unsupported_templates_raise():
    templates, poses, _ = numbers(SIZES[0])
    with pytest.raises(TorchcapsError, match="are not float32"):
        warped(templates.double(), poses, 11, impl="triton")
    with pytest.raises(TorchcapsError, match="more than 64 rows"):
        warped(torch.rand(3, 2, 65, 65, device=DEVICE), poses, 11, impl="triton")
    with pytest.raises(RuntimeError, match=r"place takes templates \[I,C,S,S\]"):
        torch.ops.torchcaps.place(templates, poses[:, :1], 11)
    assert torch.ops.torchcaps.place(templates, poses[:0], 11).shape == (0, 3, 2, 11, 11)
