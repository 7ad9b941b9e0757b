"""Training batches: index tensors on the device, augment, cast.

Batch number `step` depends only on the seed and the step: there is no state to save, and every rank
of a distributed run takes its rows of the same global batch.
"""

import torch
from torch import Tensor

from torchcaps.data.augment import CUTMIX_UNIFORMS, Augment, cutmix
from torchcaps.data.dataset import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform

CUTMIX_SEED = 0x5EED
"""Bits of the seed that change for pasted images, for other random numbers than the image's."""


class Loader:
    """`loader.batch(step)` for any step, in any order.

    The samples of an epoch are a permutation; the last, incomplete batch is dropped.
    """

    def __init__(
        self,
        data: Dataset,
        batch_size: int,
        *,
        seed: int = 0,
        augment: Augment | None = None,
        cutmix: float = 0.0,
        balanced: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ):
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.augment = augment
        self.cutmix = cutmix
        self.balanced = balanced
        if balanced and (data.train.labels.ndim != 1 or not data.num_classes or not data.shuffled):
            raise TorchcapsError(f"{data.name}: balanced sampling needs one label for each image.")
        self.length = len(data.train) * data.copies
        self.steps_per_epoch = self.length // batch_size
        if not self.steps_per_epoch:
            raise TorchcapsError(
                f"A batch of {batch_size} is more than the {self.length} training images. Give "
                f"--batch-size {self.length} or less."
            )
        if batch_size % world_size:
            raise TorchcapsError(
                f"A batch of {batch_size} cannot be shared by {world_size} processes. Give a "
                f"multiple of {world_size}."
            )
        share = batch_size // world_size
        self._rank_rows = slice(rank * share, (rank + 1) * share)
        self._epoch, self._order = -1, torch.empty(0)
        # on a GPU the launch of many small kernels dominates, so the loader makes several batches
        # at once; each depends only on its step
        self._group = max(1, 2048 // batch_size) if data.train.images.is_cuda else 1
        self._first, self._batches = -1, Batch(torch.empty(0), torch.empty(0))

    def _permutation(self, epoch: int) -> Tensor:
        if epoch != self._epoch:
            device = self.data.train.images.device
            self._epoch, self._order = epoch, torch.arange(self.length, device=device)
            if self.data.shuffled:
                u = counter_uniform(self.seed, torch.tensor([epoch]), 2)[0]
                bits = u.mul(2**24).long().tolist()
                generator = torch.Generator().manual_seed((bits[0] << 24) + bits[1])
                order = torch.randperm(self.length, generator=generator)
                order = self._balanced(generator)[order] if self.balanced else order
                self._order = order.to(device)
        return self._order

    def _balanced(self, generator: torch.Generator) -> Tensor:
        """Rows of an epoch in which every class is equally frequent; its images repeat in turn."""
        labels = self.data.train.labels.cpu()
        classes = [(labels == c).nonzero()[:, 0] for c in labels[labels >= 0].unique()]
        count = -(-self.length // len(classes))
        columns = []
        for rows in classes:
            rounds = range(-(-count // len(rows)))
            orders = [rows[torch.randperm(len(rows), generator=generator)] for _ in rounds]
            columns.append(torch.cat(orders)[:count])
        return torch.stack(columns, 1).flatten()[: self.length]

    def batch(self, step: int) -> Batch:
        epoch, i = divmod(step, self.steps_per_epoch)
        n = i % self._group
        if step - n != self._first:
            self._first, self._batches = step - n, self._make(epoch, i - n)
        share = self._rank_rows.stop - self._rank_rows.start
        return self._batches[slice(n * share, (n + 1) * share)]

    def _make(self, epoch: int, i: int) -> Batch:
        """This rank's rows of batches i to i + group of an epoch."""
        count = min(self._group, self.steps_per_epoch - i)
        start = i * self.batch_size
        order = self._permutation(epoch)[start : start + count * self.batch_size]
        sample = order.unflatten(0, (count, self.batch_size))[:, self._rank_rows].flatten()
        number = sample + epoch * self.length
        if self.balanced:  # a row comes several times, each time with other random numbers
            slots = torch.arange(start, start + count * self.batch_size, device=sample.device)
            number = slots.unflatten(0, (count, self.batch_size))[:, self._rank_rows].flatten()
            number = number + epoch * self.length
        batch = self._images(sample, number, self.seed)
        if not self.cutmix:
            return batch
        u = counter_uniform(self.seed ^ CUTMIX_SEED, number, 1 + CUTMIX_UNIFORMS)
        partner = (u[:, 0] * self.length).long()
        other = self._images(partner, partner + epoch * self.length, self.seed ^ CUTMIX_SEED)
        return cutmix(batch, other, u[:, 1:], self.cutmix)

    def _images(self, sample: Tensor, number: Tensor, seed: int) -> Batch:
        batch = self.data.training(sample % len(self.data.train), number)
        return self.augment(batch, seed, number) if self.augment else batch
