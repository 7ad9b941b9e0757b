"""Training batches: an index into tensors on the device, an augmentation, a cast.

Batch number `step` depends on the seed and the step alone: there is no state to save, and every
rank of a distributed run takes its rows of the same global batch.
"""

import torch
from torch import Tensor

from torchcaps.data.augment import Augment
from torchcaps.data.dataset import Batch, Dataset
from torchcaps.data.mix import NUM_DRAWS, cutmix
from torchcaps.errors import TorchcapsError
from torchcaps.functional import draws

MIXED = 0x5EED
"""A change of the seed for what is pasted: other draws than those of the image itself."""


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
        cutmix: float = 0.0,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.cutmix = cutmix
        self.length = len(data.train) * data.copies
        self.steps_per_epoch = self.length // batch_size
        if not self.steps_per_epoch:
            raise TorchcapsError(
                f"A batch of {batch_size} is more than the {self.length} training images: give "
                f"--batch-size {self.length} or less."
            )
        if batch_size % world_size:
            raise TorchcapsError(
                f"A batch of {batch_size} cannot be shared by {world_size} processes."
            )
        share = batch_size // world_size
        self._mine = slice(rank * share, (rank + 1) * share)
        self._epoch, self._order = -1, torch.empty(0)
        # On a GPU many small kernels cost more than the work in them, so several batches are made
        # at once; which ones does not matter, since each depends on its step alone.
        self._group = max(1, 2048 // batch_size) if data.train.images.is_cuda else 1
        self._first, self._made = -1, Batch(torch.empty(0), torch.empty(0))

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            device = self.data.train.images.device
            if not self.data.shuffled:
                self._order, self._epoch = torch.arange(self.length, device=device), epoch
                return self._order
            bits = draws(self.seed, torch.tensor([epoch]), 2)[0].mul(2**24).long().tolist()
            generator = torch.Generator().manual_seed((bits[0] << 24) + bits[1])
            self._order = torch.randperm(self.length, generator=generator).to(device)
            self._epoch = epoch
        return self._order

    def batch(self, step: int) -> Batch:
        epoch, i = divmod(step, self.steps_per_epoch)
        within = i % self._group
        if step - within != self._first:
            self._first, self._made = step - within, self._make(epoch, i - within)
        share = self._mine.stop - self._mine.start
        return self._made[slice(within * share, (within + 1) * share)]

    def _make(self, epoch: int, i: int) -> Batch:
        """This rank's rows of batches i to i + group of an epoch."""
        count = min(self._group, self.steps_per_epoch - i)
        start = i * self.batch_size
        order = self._permutation(epoch)[start : start + count * self.batch_size]
        sample = order.unflatten(0, (count, self.batch_size))[:, self._mine].flatten()
        number = sample + epoch * self.length
        batch = self._images(sample, number, self.seed)
        if not self.cutmix:
            return batch
        u = draws(self.seed ^ MIXED, number, 1 + NUM_DRAWS)
        partner = (u[:, 0] * self.length).long()
        other = self._images(partner, partner + epoch * self.length, self.seed ^ MIXED)
        return cutmix(batch, other, u[:, 1:], self.cutmix)

    def _images(self, sample: Tensor, number: Tensor, seed: int) -> Batch:
        batch = self.data.training(sample % len(self.data.train), number)
        return self.augment(batch, seed, number) if self.augment else batch
