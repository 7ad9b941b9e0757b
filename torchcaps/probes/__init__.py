"""Simple learners on frozen features: fit, predict, score."""

from torchcaps.probes.kmeans import KMeans
from torchcaps.probes.knn import KNN
from torchcaps.probes.linear import Linear
from torchcaps.probes.logistic import Logistic
from torchcaps.probes.svm import SVM

__all__ = ["KNN", "SVM", "KMeans", "Linear", "Logistic"]
