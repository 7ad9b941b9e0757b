"""Decoders from capsules to pixels."""

from torch import Tensor, nn


class MLPDecoder(nn.Module):
    """Fully connected layers, then pixels in [0,1]. units [B,N] -> images [B,C,H,W]

    >>> decoder = MLPDecoder(in_units=160, hidden=(64,), image_shape=(1, 28, 28))
    >>> decoder(torch.rand(2, 160)).shape
    torch.Size([2, 1, 28, 28])
    """

    letters = "[B,JE] -> [B,C,H,W]"

    def __init__(
        self, *, in_units: int, hidden: tuple[int, ...], image_shape: tuple[int, int, int]
    ):
        super().__init__()
        self.image_shape = image_shape
        channels, height, width = image_shape
        modules: list[nn.Module] = []
        for units in hidden:
            modules += [nn.Linear(in_units, units), nn.ReLU()]
            in_units = units
        self.net = nn.Sequential(
            *modules, nn.Linear(in_units, channels * height * width), nn.Sigmoid()
        )

    def forward(self, units: Tensor) -> Tensor:
        return self.net(units).unflatten(-1, self.image_shape)
