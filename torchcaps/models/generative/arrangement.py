"""Arrangement of parts by objects: the object that each part belongs to, and the part's pose.

    s_i  ~ Cat(pi_i),  pi_ij = share_ij t_j / (share_i0 + sum_j' share_ij' t_j')     0: no object
    k_i  | s_i=j ~ LogitConcrete(presence_ij)          z_i = sigmoid(k_i)
    X'_i | s_i=j ~ Norm(X_j M_ij, std_ij) if the part is on, Norm(identity, off_std) if it is off

Given the objects, parts are independent and s_i affects part i only. A log-sum-exp over objects
therefore replaces the sum over (J+1)^I selections. A relaxed presence z lies between on and off:

    mixture        log(z N_on + (1-z) N_off), a proper density and exact at 0 and 1
    interpolated   Norm(z mean + (1-z) identity, z std + (1-z) off_std)
    weighted       z log N_on + (1-z) log N_off, below the mixture by Jensen, not normalized
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.functional import inverse_3x3, small_product
from torchcaps.layers.templates import compose
from torchcaps.models.generative.concrete import concrete_log_prob, log_off, log_on, normal_log_prob

OnOff = Literal["mixture", "interpolated", "weighted"]


class Arrangement(nn.Module):
    """Generative layer from objects to parts, with the selection summed out.

    Calling it returns the log-joint of every selection, [B,I,J+1], the dummy's first:
    `.logsumexp(-1)` is log p(part | objects), `.softmax(-1)` the posterior over selections.
    """

    letters = "[B,J,2,3], [B,I,2,3] -> [B,I,J+1]"
    identity: Tensor

    def __init__(
        self, num_objects: int, num_parts: int, scale: float, *, tau: float = 1.0,
        min_std: float = 0.1, off_std: float = 1.5, dummy_std: float = 1.0,
        dummy_share: float = 0.1, dummy_presence: float = 0.1, on_off: OnOff = "mixture",
    ):  # fmt: skip
        """scale: initial size of a part relative to its object"""
        super().__init__()
        pairs = (num_parts, num_objects)
        self.tau, self.min_std, self.off_std, self.on_off = tau, min_std, off_std, on_off
        self.dummy = (dummy_std, dummy_share, dummy_presence)
        poses = torch.zeros(*pairs, 2, 3)
        poses[..., :2] = scale * torch.eye(2)
        poses[..., 2] = 0.3 * torch.randn(*pairs, 2)
        self.place = nn.Parameter(poses)
        self.share = nn.Parameter(torch.zeros(pairs))
        self.presence = nn.Parameter(torch.zeros(pairs))
        self.spread = nn.Parameter(torch.full(pairs, -1.05))  # std 0.4, min_std included
        self.register_buffer("identity", torch.eye(2, 3), persistent=False)

    @property
    def std(self) -> Tensor:
        """Standard deviation of a part around its vote [I,J+1], the dummy's first."""
        return F.pad(self.min_std + F.softplus(self.spread), (1, 0), value=self.dummy[0])

    @property
    def presence_logits(self) -> Tensor:
        """Logits of a part's presence given its object [I,J+1], the dummy's first."""
        dummy = self.presence.new_full((len(self.presence), 1), self.dummy[2]).logit()
        return torch.cat([dummy, self.presence], 1)

    def means(self, objects: Tensor) -> Tensor:
        """Mean pose of each part given its object. [B,J,2,3] -> [B,I,J+1,2,3]"""
        votes = self.votes(objects)
        return torch.cat([self.identity.expand(*votes.shape[:2], 1, 2, 3), votes], 2)

    def votes(self, objects: Tensor) -> Tensor:
        """Pose that each object predicts for each part. [B,J,2,3] -> [B,I,J,2,3]"""
        return compose(objects[:, None], self.place)

    def log_selection(self, logits: Tensor) -> Tensor:
        """Log of the selection probabilities pi. logits of objects [B,J] -> [B,I,J+1]"""
        shares = log_on(self.share) + log_on(logits)[:, None]
        dummy = shares.new_tensor(self.dummy[1]).log().expand(*shares.shape[:2], 1)
        return torch.cat([dummy, shares], -1).log_softmax(-1)

    def log_parts(self, objects: Tensor, part_logits: Tensor, parts: Tensor) -> Tensor:
        """log p(k_i, X'_i | s_i = j). [B,J,2,3], [B,I], [B,I,2,3] -> [B,I,J+1]"""
        log_presence = concrete_log_prob(part_logits[..., None], self.presence_logits, self.tau)
        means = self.means(objects)
        return log_presence + self._log_poses(part_logits[..., None], parts[:, :, None], means)

    def on_probabilities(self, objects: Tensor, part_logits: Tensor, parts: Tensor) -> Tensor:
        """Probability that each part is on, given each object that may have it. -> [B,I,J]"""
        std = self.std[:, 1:, None, None]
        on = normal_log_prob(parts[:, :, None], self.votes(objects), std).sum((-2, -1))
        off = normal_log_prob(parts, self.identity, self.off_std).sum((-2, -1))
        threshold = log_off(part_logits) + off - log_on(part_logits)
        return (on - threshold[..., None]).sigmoid()

    def pull(
        self, selections: Tensor, objects: Tensor, part_logits: Tensor, parts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Quadratic approximation of the pose density of parts, given the selections.

        selections [B,I,J+1] -> precision [B,I], mean pose [B,I,2,3]
        """
        means, std = self.means(objects), self.std
        log_on_pose = normal_log_prob(parts[:, :, None], means, std[..., None, None]).sum((-2, -1))
        log_off_pose = normal_log_prob(parts, self.identity, self.off_std).sum((-2, -1))
        odds = log_on(part_logits) - log_off(part_logits) - log_off_pose
        on = selections * (log_on_pose + odds[..., None]).sigmoid()
        weight, off = on / std.square(), (selections - on).sum(-1) / self.off_std**2
        mean = torch.einsum("bij,bijpq->bipq", weight, means) + off[..., None, None] * self.identity
        precision = weight.sum(-1) + off
        return precision, mean / precision[..., None, None]

    def best_poses(self, shares: Tensor, parts: Tensor, pose_std: float = 1.0) -> Tensor:
        """Poses of objects that explain parts best under a prior of Norm(identity, pose_std).

        With w_ij = shares_ij / std_ij^2, votes are linear in an object's pose, which solves
        X_j (p + sum_i w_ij M_ij M_ij^T) = p + sum_i w_ij X'_i M_ij^T, M with a last row 0 0 1 and
        p = 1 / pose_std^2 times the identity.

        shares [B,I,J]: probability that part i is on and belongs to j; parts [B,I,2,3] -> [B,J,2,3]
        """
        last = self.place.new_tensor([0.0, 0.0, 1.0]).expand(*self.place.shape[:2], 1, 3)
        relations = torch.cat([self.place, last], -2)
        weight = shares / self.std[:, 1:].square()
        weight = weight[..., None, None]
        left = (weight * small_product(relations, relations.mT)).sum(1)
        right = (weight * small_product(parts[:, :, None], relations.mT)).sum(1)
        prior = torch.eye(3, device=parts.device, dtype=parts.dtype) / pose_std**2
        return small_product(right + prior[:2], inverse_3x3(left + prior))

    def em_step(
        self,
        selections: Tensor,
        objects: Tensor,
        part_logits: Tensor,
        parts: Tensor,
        pose_std: float,
    ) -> Tensor:
        """Best poses of objects under the posterior over selections, without the dummy.

        selections [B,I,J] -> [B,J,2,3]
        """
        shares = selections * self.on_probabilities(objects, part_logits, parts)
        return self.best_poses(shares, parts, pose_std)

    def _log_poses(self, logits: Tensor, parts: Tensor, means: Tensor) -> Tensor:
        std = self.std[..., None, None]
        if self.on_off == "interpolated":
            on = logits.sigmoid()[..., None, None]
            mean = on * means + (1 - on) * self.identity
            return normal_log_prob(parts, mean, on * std + (1 - on) * self.off_std).sum((-2, -1))
        on = normal_log_prob(parts, means, std).sum((-2, -1))
        off = normal_log_prob(parts, self.identity, self.off_std).sum((-2, -1))
        if self.on_off == "weighted":
            presence = logits.sigmoid()
            return presence * on + (1 - presence) * off
        return torch.logaddexp(log_on(logits) + on, log_off(logits) + off)

    def forward(
        self, logits: Tensor, objects: Tensor, part_logits: Tensor, parts: Tensor
    ) -> Tensor:
        with torch.autocast(parts.device.type, enabled=False):
            dtype = self.place.dtype
            logits, objects, part_logits, parts = (
                t.to(dtype) for t in (logits, objects, part_logits, parts)
            )
            return self.log_selection(logits) + self.log_parts(objects, part_logits, parts)
