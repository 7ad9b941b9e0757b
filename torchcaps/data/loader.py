"""Training batches: an index into tensors on the device, an augmentation, a cast.

Batch number `step` depends on the seed and the step alone: there is no state to save, and every
rank of a distributed run takes its rows of the same global batch.
"""

import torch
from torch import Tensor

from torchcaps.data.augment import Augment
from torchcaps.data.dataset import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.functional import draws


class Loader:
    """`loader.batch(step)` for any step, in any order.

    The samples of an epoch are a permutation; the last, incomplete batch is left out.
    """

    def __init__(
        self,
        data: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        augment: Augment | None = None,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.length = len(data.train) * data.copies
        self.steps_per_epoch = self.length // batch_size
        if not self.steps_per_epoch:
            raise TorchcapsError(
                f"A batch of {batch_size} is more than the {self.length} training images."
            )
        if batch_size % world_size:
            raise TorchcapsError(
                f"A batch of {batch_size} cannot be shared by {world_size} processes."
            )
        share = batch_size // world_size
        self._mine = slice(rank * share, (rank + 1) * share)
        self._epoch, self._order = -1, torch.empty(0)

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            device = self.data.train.images.device
            bits = draws(self.seed, torch.tensor([epoch]), 2)[0].mul(2**24).long().tolist()
            generator = torch.Generator().manual_seed((bits[0] << 24) + bits[1])
            self._order = torch.randperm(self.length, generator=generator).to(device)
            self._epoch = epoch
        return self._order

    def batch(self, step: int) -> Batch:
        epoch, i = divmod(step, self.steps_per_epoch)
        start = i * self.batch_size
        sample = self._permutation(epoch)[start : start + self.batch_size][self._mine]
        number = sample + epoch * self.length
        rows = sample % len(self.data.train)
        render = self.data.render
        batch = render(self.data.train, rows, number) if render else self.data.train.batch(rows)
        return self.augment(batch, self.seed, number) if self.augment else batch
