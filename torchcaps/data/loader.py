"""Training batches: index tensors on the device, augment, cast.

Batch number `step` depends only on the seed and the step: there is no state to save, and every rank
of a distributed run takes its rows of the same global batch.
"""

import torch
from torch import Tensor

from torchcaps.data.augment import CUTMIX_UNIFORMS, Augment, cutmix
from torchcaps.data.dataset import Batch, Dataset
from torchcaps.data.stream import StoredImages, prefetch
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform

CUTMIX_SEED = 0x5EED
"""Bits of the seed that change for pasted images, for other random numbers than the image's."""
AHEAD = 3
"""Batches that are read and decoded ahead if the images are on disk."""


class Loader:
    """`loader.batch(step)` for any step, in any order.

    The samples of an epoch are a permutation; the last, incomplete batch is dropped.

    >>> loader = Loader(torchcaps.data.load("digits"), 50)
    >>> loader.batch(7).images.shape
    torch.Size([50, 1, 28, 28])
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
        if batch_size < 1:
            raise TorchcapsError(f"batch_size={batch_size}: it must be at least 1.")
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
        self._orders: dict[int, Tensor] = {}
        images = data.train.images
        self.device = images.device
        self._stored = isinstance(images, StoredImages)
        # on a GPU the launch of many small kernels dominates, so the loader makes several batches
        # at once; each depends only on its step
        several = images.is_cuda and not self._stored
        self._group = max(1, 2048 // batch_size) if several else 1
        self._first, self._batches = -1, Batch(torch.empty(0), torch.empty(0))

    def _permutation(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            while len(self._orders) > 1:  # the next epoch begins before this one ends
                del self._orders[next(iter(self._orders))]
            device = torch.device("cpu") if self._stored else self.device
            order = torch.arange(self.length)
            if self.data.shuffled:
                u = counter_uniform(self.seed, torch.tensor([epoch]), 2)[0]
                bits = u.mul(2**24).long().tolist()
                generator = torch.Generator().manual_seed((bits[0] << 24) + bits[1])
                order = torch.randperm(self.length, generator=generator)
                order = self._balanced(generator)[order] if self.balanced else order
            self._orders[epoch] = order.to(device)
        return self._orders[epoch]

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
            for ahead in range(step, step + AHEAD) if self._stored else ():
                self._prefetch(ahead)
            self._first, self._batches = step - n, self._make(epoch, i - n)
        share = self._rank_rows.stop - self._rank_rows.start
        return self._batches[slice(n * share, (n + 1) * share)]

    def _make(self, epoch: int, i: int) -> Batch:
        """This rank's rows of batches i to i + group of an epoch."""
        sample, number = self._rows(epoch, i, min(self._group, self.steps_per_epoch - i))
        batch = self._images(sample, number, self.seed)
        if not self.cutmix:
            return batch
        partner, u = self._partners(number)
        other = self._images(partner, partner + epoch * self.length, self.seed ^ CUTMIX_SEED)
        return cutmix(batch, other, u.to(self.device), self.cutmix)

    def _rows(self, epoch: int, i: int, count: int) -> tuple[Tensor, Tensor]:
        """This rank's samples of `count` batches from i on, and their numbers in the whole run."""
        start = i * self.batch_size
        order = self._permutation(epoch)[start : start + count * self.batch_size]
        sample = order.unflatten(0, (count, self.batch_size))[:, self._rank_rows].flatten()
        number = sample + epoch * self.length
        if self.balanced:  # a row comes several times, each time with other random numbers
            slots = torch.arange(start, start + count * self.batch_size, device=sample.device)
            number = slots.unflatten(0, (count, self.batch_size))[:, self._rank_rows].flatten()
            number = number + epoch * self.length
        return sample, number

    def _partners(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """The samples that CutMix pastes into others, and the random numbers of the rectangles."""
        u = counter_uniform(self.seed ^ CUTMIX_SEED, number, 1 + CUTMIX_UNIFORMS)
        return (u[:, 0] * self.length).long(), u[:, 1:]

    def _prefetch(self, step: int) -> None:
        """Begin to read and decode the images of a step."""
        if self.data.render is not None:
            return
        sample, number = self._rows(*divmod(step, self.steps_per_epoch), 1)
        for rows in (sample, self._partners(number)[0]) if self.cutmix else (sample,):
            prefetch(self.data.train.images, rows % len(self.data.train))

    def _images(self, sample: Tensor, number: Tensor, seed: int) -> Batch:
        number = number.to(self.device)
        batch = self.data.training(sample % len(self.data.train), number)
        return self.augment(batch, seed, number) if self.augment else batch
