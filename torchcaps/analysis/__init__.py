"""Looking inside: functions of a model and data that return arrays, and figures of those arrays."""

from torchcaps.analysis import confusion, contact_sheet, curves, feature_errors
from torchcaps.analysis import reliability, robustness
from torchcaps.analysis import nearest, position_votes, routing_maps, traversal
from torchcaps.analysis.plots import Plot, get_plot, register_plot, report_plots
from torchcaps.models.generative import figures as generative_figures
from torchcaps.models.mcae import figures as mcae_figures
from torchcaps.models.sparse import figures as sparse_figures

__all__ = ["Plot", "get_plot", "register_plot", "report_plots"]
