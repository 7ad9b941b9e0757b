"""Classifiers on frozen features, each with fit, predict and score."""

from torchcaps.metrics.probes.kmeans import KMeans
from torchcaps.metrics.probes.knn import KNN
from torchcaps.metrics.probes.linear import Linear
from torchcaps.metrics.probes.logistic import Logistic
from torchcaps.metrics.probes.svm import SVM

__all__ = ["KNN", "SVM", "KMeans", "Linear", "Logistic"]
