"""torchcaps: capsule networks in PyTorch.

The map: rooms in the order an image walks through them. A room imports only rooms with a smaller
number; rooms of one number do not import each other.

0 errors          the exception that is meant for a person
0 functional      squash, safe norm, affine maps and warps, counter-based random draws
1 typed           values against type hints
1 data            data sets as uint8 tensors, whole on the device
    dataset       Batch, Split, Dataset; the validation split
    spec          NAME[:ARGUMENT][,key=value…], the grammar of names with options
    source        finding and checking files
    download      mirrors, resumable, through pooch
    registry      data sets by name
    digits        5,000 embedded MNIST digits
    mnist         MNIST, Fashion-MNIST, KMNIST (idx files)
    cifar         CIFAR-10 and -100
    matlab        MATLAB 5 files, read with care
    svhn          SVHN
    smallnorb     smallNORB, novel azimuths, novel elevations
    affnist       affNIST's original files
    imagenette    Imagenette and Imagewoof
    dsprites      dSprites
    folder        the user's own images
    generated     affnist-like, rotated, translated
    multimnist    MultiMNIST and DiverseMultiMNIST
    augment, mix  sample parameters for each image, then apply them, batched; CutMix
    loader        training batches as a function of the step
1 kernels         the fused routing step on a GPU; imports torch and triton only
    ops, combine  the step and the sum of shared votes as operators that torch knows
    attention     scores linear in the vote: no vote is formed
    shares        sums of votes whose shares are known; self-routing without windows
    votes         EM and matrix poses: votes in registers
    launch_attention, launch_shares, launch_votes, shape, tiles
1 losses          functions of tensors; never import a model
    classification, reconstruction
1 probes          simple learners on frozen features: fit, predict, score
    knn, linear
2 routing         poses and weights in, parents out
    step          one fused step, or a reference a few rows at a time
    window        windows on a grid, votes, coordinates
    dynamic, uniform, inverted, em, self_routing, vb
    fixed_point   passes until nothing changes, and the gradient of that
3 layers          parameters and windows; call routing
    routed        the parameters of any routing
    dense, conv   all children; a window; a position
    classes       class capsules without poses
    patches       sequences of patches, ConvMixer and ViT on those that are there
    stem, backbone, views, primary, decoder, patch_decoder
4 models          images in, every intermediate by name out
    base          ModelConfig, Output, saving and loading
    registry      models by name
    capsnet       CapsNet and its five switches
    convnet       the ConvNets beside it
    cnn           the CNNs beside inverted attention
    inverted      inverted attention, all layers at once
    mcae          the masked capsule autoencoder
    sr            self-routing capsules
    timm_net      classifiers of timm, for comparison
    em            matrix capsules with EM routing
    views         capsules that see an image from several poses
5 train           one loop for all papers
    recipe        one dataclass with the whole run in it
    masked        masked pretraining: its loss, its probes, its pictures
    objectives    what a step minimises and an evaluation counts
    optim         optimisers, the learning rate, the average of weights
    checkpoint    files that survive a kill
    run           the folder of a run
    record        command, commit, device, versions; results/*.jsonl
    progress      the progress display
    diagnose      the layer where a loss stopped being finite
    setup         what a run works with, built from its recipe
    training      the state of a run, one step, checkpoints
    loop          steps and validation, from the first or the last checkpoint to the record
    finish        the test split, once
    load          a model from a run, a folder or the hub
    evaluate      a finished run on other data
7 analysis        functions that return arrays, and functions that draw them
    robustness    accuracy against a transformation
    compactness   how many units react to one factor
    calibration   is a model as often right as it says
    outliers      images of another kind
    attacks       images that an attacker moved
    measure       all of these about a finished run
    traverse      what one unit draws; reconstructions
    curves        loss and accuracy against epochs
    routing       where each parent's input comes from
    contact       contact sheets
    tour          one image on its walk through a model
8 experiments     recipes and the papers' tables
    registry, tables, demo
    chain         pretraining before a recipe that needs it
    reproduce     the runs that a paper's tables still lack
    robustness    Capsule Network is Not More Robust than Convolutional Network
        setting, best, table1, table2, table3, table4, table5
    inverted      Capsules with Inverted Dot-Product Attention Routing
        setting, table1, figure4, figure5
    mcae          Masked Capsule Autoencoders
        setting, table1, ablations, best, few, views, pretraining
8 explorer        what one looks at in a browser
    page, report
9 cli             the command line
    commands, show, tables, parse, completion

Letters: B batch · C,H,W channels, height, width · I children, J parents · D child pose size,
E parent pose size · R rows of a matrix pose · T iterations · N data-set size · Y classes ·
L positions · K kernel side.
Child axis before parent axis, pose last: poses [B,I,D], weight [I,J,D,E], coupling [B,I,J].
"""

__version__ = "0.1.0"

from torchcaps import data
from torchcaps.models import create_model, list_models
from torchcaps.train import Recipe, train
from torchcaps.train.load import load

__all__ = ["Recipe", "create_model", "data", "list_models", "load", "train"]
