"""The generative model once more, as a Pyro program: an oracle for the bound written by hand.

It knows the model's numbers and none of its arithmetic of densities: selections are a discrete site
that Pyro enumerates, presences and poses are distributions of torch. Needs torchcaps[generative].
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.distributions.relaxed_bernoulli import LogitRelaxedBernoulli

from torchcaps.errors import TorchcapsError, require
from torchcaps.models.generative.arrangement import Arrangement
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.process import Layer


def _distributions() -> tuple[Any, Any, Any]:
    """Pyro, and two distributions that it lacks: a relaxed presence, a pose that is on or off."""
    pyro = require("pyro", "generative")
    base = pyro.distributions.TorchDistribution

    class Presence(base):
        arg_constraints: dict[str, Any] = {}  # noqa: RUF012
        support, has_rsample = constraints.real, True

        def __init__(self, location: Tensor, tau: float):
            self.location, self.tau = location, tau
            super().__init__(location.shape, validate_args=False)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            return Presence(self.location.expand(torch.Size(batch_shape)), self.tau)

        def _torch(self) -> LogitRelaxedBernoulli:
            return LogitRelaxedBernoulli(self.location.new_tensor(self.tau), logits=self.location)

        def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
            return self._torch().rsample(sample_shape)

        def log_prob(self, value: Tensor) -> Tensor:
            return self._torch().log_prob(value)

    class Pose(base):
        """Six numbers; a mixture of where the object wants them and of anywhere."""

        arg_constraints: dict[str, Any] = {}  # noqa: RUF012
        support, has_rsample = constraints.real_vector, True

        def __init__(self, logits: Tensor, mean: Tensor, std: Tensor, off_std: float):
            self.logits, self.middle, self.spread, self.off_std = logits, mean, std, off_std
            shape = torch.broadcast_shapes(logits.shape, mean.shape[:-1], std.shape)
            super().__init__(shape, torch.Size([6]), validate_args=False)

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            shape = torch.Size(batch_shape)
            whole = self.middle.expand(*shape, 6)
            return Pose(self.logits.expand(shape), whole, self.spread.expand(shape), self.off_std)

        def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
            shape = (*sample_shape, *self.batch_shape)
            on = torch.bernoulli(self.logits.sigmoid()).expand(shape)[..., None]
            still = torch.eye(2, 3).flatten().to(self.middle)
            mean = on * self.middle + (1 - on) * still
            std = on * self.spread.expand(shape)[..., None] + (1 - on) * self.off_std
            return mean + std * torch.randn_like(mean)

        def log_prob(self, value: Tensor) -> Tensor:
            still = torch.eye(2, 3).flatten().to(self.middle)
            normal = torch.distributions.Normal
            there = normal(self.middle, self.spread[..., None]).log_prob(value).sum(-1).exp()
            away = normal(still, self.off_std).log_prob(value).sum(-1).exp()
            on = self.logits.sigmoid()
            return (on * there + (1 - on) * away).log()

    return pyro, Presence, Pose


def program(model: Generative) -> Callable[..., Any]:
    """The generative process; called with images they are observed, with a number they are drawn.

    For one layer of objects, many of which may be on, and on/off as a mixture.
    """
    c = model.options
    if len(c.num_caps) != 2 or c.objects != "many" or c.on_off != "mixture":
        raise TorchcapsError("The program is of two layers, many objects, and on/off as a mixture.")
    pyro, presence, pose = _distributions()
    dist = pyro.distributions
    (arrangement,) = model.process.arrangements
    assert isinstance(arrangement, Arrangement)
    (objects, parts), a = c.num_caps, arrangement
    dummy_std, dummy_share, dummy_presence = a.dummy

    def run(images: Tensor | int) -> Tensor:
        count = images if isinstance(images, int) else len(images)
        still = torch.eye(2, 3).to(a.place)
        with pyro.plate("images", count, dim=-2):
            with pyro.plate("objects", objects, dim=-1):
                prior = model.process.presence.expand(count, objects)
                t = pyro.sample("t", presence(prior, c.tau))
                zero = still.new_zeros(count, objects, 6)
                offset = pyro.sample("A", dist.Normal(zero, c.pose_std).to_event(1))
            whole = still.new_zeros(count, objects, 3, 3)
            whole[..., 2, 2] = 1
            whole[..., :2, :] = offset.reshape(count, objects, 2, 3) + still
            last = still.new_tensor([[0.0, 0.0, 1.0]]).expand(parts, objects, 1, 3)
            places = torch.cat([a.place, last], -2)
            votes = torch.einsum("bjpq,ijqr->bijpr", whole, places)[..., :2, :].flatten(-2)
            means = torch.cat([still.flatten().expand(count, parts, 1, 6), votes], 2)
            weights = a.share.sigmoid() * t.sigmoid().reshape(count, 1, objects)
            weights = torch.cat([still.new_full((count, parts, 1), dummy_share), weights], -1)
            class_probabilities = torch.cat([still.new_full((parts, 1), dummy_presence),
                                 a.presence.sigmoid()], 1)  # fmt: skip
            std = a.min_std + torch.nn.functional.softplus(a.spread)
            std = torch.cat([still.new_full((parts, 1), dummy_std), std], 1)
            with pyro.plate("parts", parts, dim=-1):
                s = pyro.sample("s", dist.Categorical(weights), infer={"enumerate": "parallel"})
                part, image = torch.arange(parts), torch.arange(count)[:, None]
                k = pyro.sample("k", presence(class_probabilities[part, s].logit(), c.tau))
                x = pyro.sample("X", pose(k, means[image, part, s], std[part, s], a.off_std))
        poses = x.reshape(count, parts, 2, 3)
        drawn = model.process.templates(poses, k.reshape(count, parts).sigmoid())
        with pyro.plate("pixels", count, dim=-1):
            given = None if isinstance(images, int) else images
            return pyro.sample("image", dist.Normal(drawn, c.sigma).to_event(3), obs=given)

    return run


def guide(model: Generative, layers: list[Layer]) -> Callable[..., None]:
    """The encoder's posterior, full, as draws of Pyro's."""
    pyro, presence, _ = _distributions()
    parts, top = layers
    tau, still = model.options.tau, torch.eye(2, 3).flatten().to(top.mean)
    assert parts.std is not None and top.std is not None
    part_std, top_std = parts.std.flatten(2), top.std.flatten(2)

    def run(images: Tensor) -> None:
        normal = pyro.distributions.Normal
        with pyro.plate("images", len(images), dim=-2):
            with pyro.plate("parts", parts.mean.shape[1], dim=-1):
                pyro.sample("k", presence(parts.location, tau))
                pyro.sample("X", normal(parts.mean.flatten(2), part_std).to_event(1))
            with pyro.plate("objects", top.mean.shape[1], dim=-1):
                pyro.sample("t", presence(top.location, tau))
                pyro.sample("A", normal(top.mean.flatten(2) - still, top_std).to_event(1))

    return run
