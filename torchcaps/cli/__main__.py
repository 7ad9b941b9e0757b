"""`python -m torchcaps.cli`, for launchers such as torchrun."""

import sys

from torchcaps.cli import main

sys.exit(main())
