"""A routing layer in a network of one's own, in a loop of one's own.

    python examples/routing_layer.py

A few convolutions see a digit, their maps are cut into capsules, and ten class capsules route them
by agreement. On a GPU the same lines run fused: no vote is written.
"""

import torch
from torch import Tensor, nn

from torchcaps import data
from torchcaps.functional import safe_norm
from torchcaps.layers import DenseCaps, Dynamic
from torchcaps.losses import margin_loss


class Network(nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.dim = dim
        self.maps = nn.Sequential(
            nn.Conv2d(1, 32, 5, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 5, 2)
        )
        places = 4 * 4 * 64 // dim
        self.classes = DenseCaps(
            in_caps=places, in_dim=dim, out_caps=10, out_dim=16, routing=Dynamic(num_iters=3)
        )

    def forward(self, images: Tensor) -> Tensor:
        """[B,1,28,28] -> lengths of the class capsules [B,10]"""
        maps = self.maps(images)  # [B,64,4,4]
        children = maps.flatten(2).mT.reshape(len(images), -1, self.dim)  # [B,128,8]
        poses, _, _ = self.classes(children)  # [B,10,16]
        return safe_norm(poses)


def main(steps: int = 200) -> float:
    """Train, and print how many of 500 test digits are right."""
    torch.manual_seed(0)
    digits = data.load("digits")
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for step in range(steps):
        batch = digits.train.batch(torch.randint(len(digits.train), (64,)))
        loss = margin_loss(network(batch.images), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}  loss {float(loss.detach()):.3f}")
    network.eval()
    test = digits.test.batch(slice(None))
    with torch.no_grad():
        right = float((network(test.images).argmax(1) == test.labels).float().mean())
    print(f"{right:.1%} of {len(test)} test digits are right")
    return right


if __name__ == "__main__":
    main()
