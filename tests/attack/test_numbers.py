"""Tensors that would be cast or broadcast by accident: refused in one sentence, by all alike."""

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.routing import (
    dynamic_routing,
    em_routing,
    inverted_routing,
    self_routing,
    uniform_routing,
    vb_routing,
)
from torchcaps.routing.inverted import inverted_attention_step
from torchcaps.routing.window import Window

B, I, J, D, E = 2, 6, 3, 4, 5
ROUTINGS = {
    "dynamic": lambda p, w, **o: dynamic_routing(p, w, **o),
    "uniform": lambda p, w, **o: uniform_routing(p, w, **o),
    "inverted": lambda p, w, **o: inverted_routing(p, w, **o),
}


@pytest.mark.parametrize("impl", ["reference", "triton"])
@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize(
    "poses, weight, said",
    [
        (torch.int64, torch.float32, "needs floats"),
        (torch.float32, torch.int32, "needs floats"),
        (torch.float16, torch.float32, "one type"),
        (torch.float32, torch.bfloat16, "one type"),
        (torch.bool, torch.bool, "needs floats"),
    ],
    ids=str,
)
def test_kinds(name, impl, poses, weight, said):
    tensors = torch.ones(B, I, D).to(poses), torch.ones(I, J, D, E).to(weight)
    with pytest.raises(TorchcapsError, match=said):
        ROUTINGS[name](*tensors, impl=impl)


@pytest.mark.parametrize("name", ROUTINGS)
def test_shapes(name):
    weight = torch.rand(I, J, D, E)
    with pytest.raises(TorchcapsError, match=r"needs \[B,H,W,I,D\] with a window"):
        ROUTINGS[name](torch.rand(B, I, D), torch.rand(9 * I, J, D, E), window=Window(3))
    with pytest.raises(TorchcapsError, match=r"needs \[B,I,D\]"):
        ROUTINGS[name](torch.rand(I, D), weight)


@pytest.mark.parametrize("shape", [(B, 1, E), (1, J, E), (B, J, 1), (J, E)], ids=str)
def test_parents_do_not_broadcast(shape):
    with pytest.raises(TorchcapsError, match="parents have shape"):
        inverted_attention_step(
            torch.rand(B, I, D), torch.rand(I, J, D, E), torch.rand(shape), impl="reference"
        )


def test_an_empty_batch_is_called_one():
    with pytest.raises(TorchcapsError, match="the batch is empty"):
        dynamic_routing(torch.rand(0, I, D), torch.rand(I, J, D, E), impl="triton")
    poses, _ = dynamic_routing(torch.rand(0, I, D), torch.rand(I, J, D, E), impl="reference")
    assert poses.shape == (0, J, E)


def test_the_others_refuse_too():
    poses, weight = torch.ones(B, I, D).long(), torch.rand(I, J, D, E)
    active = torch.rand(B, I)
    zeros = torch.zeros(J)
    with pytest.raises(TorchcapsError, match="needs floats"):
        em_routing(poses, active, weight, zeros, zeros)
    with pytest.raises(TorchcapsError, match="needs floats"):
        vb_routing(poses, active, weight, zeros, zeros)
    for routing in (em_routing, vb_routing):
        with pytest.raises(TorchcapsError, match=r"needs \[B,H,W,I,D\] with a window"):
            weight9 = torch.rand(9 * I, J, D, E)
            routing(poses.float(), active, weight9, zeros, zeros, window=Window(3))
    with pytest.raises(TorchcapsError, match="needs floats"):
        self_routing(poses, active, weight, torch.rand(I, J, D), torch.rand(I, J))
