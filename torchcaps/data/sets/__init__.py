"""One file per data set; importing this package registers them all."""

from torchcaps.data.sets import affnist, cifar, dsprites, folder, fruits_overlap, fruits_views
from torchcaps.data.sets import generated, imagenette, mnist
from torchcaps.data.sets import multimnist, packed, smallnorb, svhn
