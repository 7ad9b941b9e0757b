"""A capsule network in Lightning's loop, with torchcaps' loss.

pip install pytorch-lightning
python examples/lightning_loop.py
"""

import pytorch_lightning as lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import torchcaps
from torchcaps.losses import margin_loss


class Capsules(lightning.LightningModule):
    def __init__(self, model: str = "capsnet-small", lr: float = 1e-3):
        super().__init__()
        self.model = torchcaps.create_model(model)
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        images, labels = batch
        scores = self.model.encode(images).scores
        assert scores is not None
        return margin_loss(scores, labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)


def main(steps: int = 100, **options) -> float:
    """Train, and print how many of 500 test digits are right."""
    lightning.seed_everything(0, verbose=False)
    digits = torchcaps.data.load("digits")
    batch = digits.train.batch(slice(None))
    loader = DataLoader(TensorDataset(batch.images, batch.labels), batch_size=32, shuffle=True)
    network = Capsules()
    trainer = lightning.Trainer(
        max_steps=steps, logger=False, enable_checkpointing=False, **options
    )
    trainer.fit(network, loader)
    test = digits.test.batch(slice(None))
    with torch.no_grad():
        logits = network.model.eval().encode(test.images).logits
        assert logits is not None
        right = (logits.argmax(1) == test.labels).float()
    print(f"{right.mean():.1%} of {len(test)} test digits are right")
    return float(right.mean())


if __name__ == "__main__":
    main()
