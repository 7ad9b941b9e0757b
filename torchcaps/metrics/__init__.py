"""Numbers about a model on data, by name; what training and evaluation report."""

from torchcaps.metrics import accuracy, angles, attacks, calibration, compactness, confusion
from torchcaps.metrics import equivariance, outliers, pose_angle, probes, ranks, robustness, views
from torchcaps.metrics.base import METRICS, Metric, prepare, read_metric, register_metric
from torchcaps.metrics.probes import metric as probe_metrics

__all__ = ["METRICS", "Metric", "prepare", "read_metric", "register_metric"]
