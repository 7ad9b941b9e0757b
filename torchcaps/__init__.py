"""torchcaps: capsule networks in PyTorch.

The map: rooms in the order an image walks through them. A room imports only rooms with a smaller
number; rooms of one number do not import each other.

0 errors            the exception that is meant for a person
0 functional        squash, safe norm, affine maps and warps, counter-based random draws
1 typed             values against type hints
1 data              data sets as uint8 tensors, whole on the device
    dataset         Batch, Split, Dataset; the validation split
    spec            NAME[:ARGUMENT][,key=value…], the grammar of names with options
    source          finding and checking files
    download        mirrors, resumable, through pooch
    registry        data sets by name
    pickled         the few pickles that are read, nothing in them called
    digits          5,000 embedded MNIST digits
    mnist           MNIST, Fashion-MNIST, KMNIST (idx files)
    cifar           CIFAR-10 and -100
    matlab          MATLAB 5 files, read with care
    svhn            SVHN
    smallnorb       smallNORB, novel azimuths, novel elevations
    affnist         affNIST's original files
    imagenette      Imagenette and Imagewoof
    dsprites        dSprites
    pictures        picture files as tensors
    folder          the user's own images
    given           arrays, a torch Dataset, an iterable
    generated       affnist-like, rotated, translated
    multimnist      MultiMNIST and DiverseMultiMNIST
    constellations  squares and triangles as points
    augment         sample parameters for each image, then apply them, batched
    mix             CutMix
    ink             where the ink lies, and whether two sets have it alike
    loader          training batches as a function of the step
1 kernels           what a GPU does in one step; imports torch and triton only
    ops             the step as an operator that torch knows
    combine         the sum of shared votes as an operator
    attention       scores linear in the vote: no vote is formed
    shares          sums of votes whose shares are known; self-routing without windows
    votes           EM and matrix poses: votes in registers
    windows         which pose of a grid is the child of a window
    tiles           orders of a tile's columns
    shape           sizes of a step, and what all launches derive from them
    launch_attention, launch_shares, launch_votes
    templates       templates where affine maps place them
    place           that as an operator
    smo             support vector machines of all pairs of classes
    launch_smo      their kernel matrix, and the launch
    available       whether kernels can run here
1 losses            functions of tensors; never import a model
    classification, reconstruction
    concrete        presences as logits: densities and divergences
2 probes            simple learners on frozen features: fit, predict, score
    knn, linear, logistic, svm, kmeans
2 routing           poses and weights in, parents out
    step            one fused step, or a reference a few rows at a time
    window          windows on a grid, votes, coordinates
    rivals          which parents compete for a child where windows overlap
    dynamic, uniform, inverted, em, self, vb
    equilibrium     passes until nothing changes, and the gradient of that
3 layers            parameters and windows; call routing
    routers         one small class a routing: its options, its parameters, its call
    routed          transforms and a router: what every capsule layer shares
    dense           all children
    conv            the children in a window, or at one position
    classes         class capsules without poses
    sparse          parents masked by rank, and their boosts
    frame           a frame that follows the ink
    turns           frames at several angles, of which the best explained is kept
    templates       parts that poses place on a canvas, one over the other
    arrangement     objects to parts, with the selection summed out
    parts           an image to parts, attentively pooled
    sets            the set transformer: attention among the members of a set
    patches         sequences of patches, ConvMixer and ViT on the visible ones
    stem, backbone, views, primary, decoder, patch_decoder
4 models            images in, every intermediate by name out
    base            ModelConfig, Output, encode, decode, representations
    hub             a model as a folder, and on the hub
    heads           classes taken off a model, and put on again
    predicting      from pictures to names
    tracing         every pass of every routing
    exporting       a model as a file for other programs
    registry        models by name
    zoo             weights that come along
    capsnet         CapsNet and its five switches
    convnet         the ConvNets beside it
    cnn             the CNNs beside inverted attention
    inverted        inverted attention, all layers at once
    mcae            the masked capsule autoencoder
    sparse          sparse unsupervised capsules
    autoencoder     a plain convolutional autoencoder beside them
    process         the generative process of capsules, and its evidence bound
    generative      generative capsules with variational inference: the encoder too
    prior           images that they make up
    seeding         objects that start as the commonest arrangements of parts
    pyro_program    the same as a Pyro program, the oracle of its bound
    scae            the stacked capsule autoencoder beside them
    vae             a plain variational autoencoder beside them
    constellation   objects that explain points
    covers          all the ways to share points out among objects
    point_covers    objects whose votes are points, in every way summed
    point_scae      the stacked capsule autoencoder on points
    sr              self-routing capsules
    timm_net        classifiers of timm, for comparison
    em              matrix capsules with EM routing
    views           capsules that see an image from several poses
5 analysis          functions of a model and data: arrays, then drawings
    measures        numbers by name
    views           pictures by name
    accuracy        which images are right
    probing         simple learners on a model's representations
    robustness      accuracy against a transformation
    units           how many units react to one factor
    calibration     is a model as often right as it says
    outliers        images of another kind
    attacks         images that an attacker moved
    mistakes        each class, and where a model is wrong and sure of it
    drawing         what one unit draws; reconstructions
    masked          what is drawn of patches that were not seen
    routing         where each parent's input comes from
    ranks           which capsules an image calls on
    angles          images seen from several angles, of which one is believed
    evidence        the evidence bound, by draws
    presence        what presences of parts and objects carry
    parts           parts of a generative model in the colours of their objects
    free_form       latent numbers of each image by themselves
    search          three ways to raise the bound of an image
    segments        which points of a constellation belong together
    equivariance    whether a pose follows the image
    curves          losses and accuracy against epochs
    contact         contact sheets
    drawings        what a picture shows, for matplotlib and for a page
    figure          what figures share
    tour            one image on its walk through a model
6 train             one loop for all papers
    recipe          one dataclass with the whole run in it
    registry        recipes by name, and what a run has changed of one
    tasks           what a step minimises: modules that own their model
        base, classify, distil, reconstruct, masked, sparse, elbo
    optim           optimisers, the learning rate, the average of weights
    checkpoint      files that survive a kill
    run             the folder of a run
    record          command, commit, device, versions
    results         results/*.jsonl: measured lines and their amendments
    progress        the progress display
    failing         what ends a run from outside, in a sentence
    sharing         several runs on one device, of which one takes steps
    diagnose        the layer where a loss stopped being finite
    starting        weights that a run begins with
    setup           what a run works with, built from its recipe
    training        the state of a run, one step, checkpoints
    loop            steps and validation, from the first or the last checkpoint to the record
    finish          the test split, once
    evaluate        numbers of a chosen model, taken one way
    load            a model from a run, a folder or the hub
8 experiments       recipes and the papers' tables
    tables          a paper's table, filled from results
    demo            two small runs for a newcomer
    own             a recipe for a model and one's own images
    zoo             small models of the embedded digits, whose weights come along
    chain           pretraining before a recipe that needs it
    reproduce       the runs that a paper's tables still lack
    overview        how far the papers' tables are filled
    robustness      Capsule Network is Not More Robust than Convolutional Network
        setting, best, table1, table2, table3, table4, table5, turned
    inverted        Capsules with Inverted Dot-Product Attention Routing
        setting, table1, fair, figure4, figure5
    mcae            Masked Capsule Autoencoders
        setting, table1, ablations, best, few, views, pretraining
    sparse          Sparse Unsupervised Capsules Generalize Better
        setting, table1, best, depth, elsewhere
    generative      Capsule Networks: A Generative Probabilistic Perspective
        setting, table1, figure4, best, constellations, posterior
8 explorer          what one looks at in a browser
    report          one HTML file about runs
    files           files of the page
    shelf           models that can be explored, by an id
    questions       what a page may ask of a model: tensors in, tensors out
    wire            tensors as bytes
    guard           who may ask, and how much
    jobs            accuracy curves in the background
    server          the page and its answers on this machine
    graphs          questions as ONNX graphs
    stepping        free-form inference without a server: a start and a slope
    web             the page as files that need no server
9 estimator         a classifier as scikit-learn has them
9 cli               the command line
    commands        the table of commands, and words to functions
    training        commands that train
    judging         commands that judge a finished run
    recording       commands that keep results
    showing         commands that show
    using           commands that use a trained model
    exploring       the command that opens a page
    tables          commands that show the papers' tables and benchmarks
    laying          cells laid out, as Markdown or in pieces that fit a terminal
    saying          where commands print
    parse           tyro's parsing with errors of one or two lines
    completion      completion for shells
    catalog         what can be listed, kept in a file
    docs            tables in README and docs, made by the program
    reference       pages of every public name, from docstrings
    keep            a finished run into the zoo
    vendor          what a page without a server runs on

Letters: B batch · C,H,W channels, height, width · I children, J parents · D child pose size,
E parent pose size · R rows of a matrix pose · T iterations · N data-set size · Y classes ·
L positions · K kernel side.
Child axis before parent axis, pose last: poses [B,I,D], weight [I,J,D,E], coupling [B,I,J].
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchcaps import analysis, data, layers, models
    from torchcaps.estimator import CapsuleClassifier
    from torchcaps.models import create_model, list_models
    from torchcaps.train.load import load
    from torchcaps.train.loop import fit
    from torchcaps.train.recipe import Recipe

__all__ = [
    "CapsuleClassifier",
    "Recipe",
    "analysis",
    "create_model",
    "data",
    "fit",
    "layers",
    "list_models",
    "load",
    "models",
]

_HOMES = {
    "CapsuleClassifier": "estimator",
    "Recipe": "train.recipe",
    "create_model": "models",
    "fit": "train.loop",
    "list_models": "models",
    "load": "train.load",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for: torch alone takes a second."""
    if name in _HOMES:
        return getattr(import_module(f"torchcaps.{_HOMES[name]}"), name)
    if name in __all__:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
