import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import Window, vb_routing, vb_routing_reference

B, I, J, D, E = 2, 7, 5, 3, 4


def inputs():
    g = torch.Generator().manual_seed(0)
    kind = {"generator": g, "dtype": torch.float64}
    betas = (torch.randn(J, **kind), torch.randn(J, **kind))
    return (
        torch.randn(B, I, D, **kind),
        torch.rand(B, I, **kind),
        torch.randn(I, J, D, E, **kind),
        *betas,
    )


def test_one_pass_against_the_formula():
    poses, active, weight, beta_u, beta_a = inputs()
    mean, activations, _ = vb_routing_reference(poses, active, weight, beta_u, beta_a, 1)
    votes = torch.einsum("bid,ijde->bije", poses, weight)
    for j in range(J):
        r = active / J
        mass = r.sum(1)
        average = (r[..., None] * votes[:, :, j]).sum(1) / mass[:, None]
        torch.testing.assert_close(mean[:, j], mass[:, None] * average / (1 + mass)[:, None])
    assert ((activations > 0) & (activations < 1)).all()


def test_gradients():
    tensors = tuple(t.requires_grad_() for t in inputs())
    assert torch.autograd.gradcheck(lambda *t: vb_routing_reference(*t, 3)[:2], tensors)


def test_agreement_wins():
    """Votes that agree on one parent and scatter on the other are assigned to the first."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(20, 2, 4, 4, generator=g, dtype=torch.float64)
    weight[:, 0] = torch.eye(4, dtype=torch.float64)
    poses = torch.ones(1, 20, 4, dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.float64)
    coupling = vb_routing(poses, torch.ones(1, 20).double(), weight, zeros, zeros, 3)[2]
    assert coupling[0, :, 0].mean() > 0.8


def test_a_window():
    poses, active = torch.randn(1, 4, 4, 2, D), torch.rand(1, 4, 4, 2)
    weight, zeros = torch.randn(18, J, D, E), torch.zeros(J)
    mean, activations, coupling = vb_routing(poses, active, weight, zeros, zeros, window=Window(3))
    assert mean.shape == (1, 2, 2, J, E) and activations.shape == (1, 2, 2, J)
    assert coupling.shape == (1, 2, 2, 18, J)
    with pytest.raises(TorchcapsError, match="the kernels normalize over types"):
        vb_routing(
            poses, active, weight, zeros, zeros, window=Window(3), impl="triton", compete="places"
        )
