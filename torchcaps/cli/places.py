"""Commands for places where runs happen."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from torchcaps.cli.console import print_json, say
from torchcaps.cli.parse import Env, On
from torchcaps.errors import TorchcapsError

Root = Annotated[Path, Positional, arg(metavar="ROOT")]


def check(
    root: Root,
    /,
    on: On = "local",
    env: Env = (),
    data_root: Annotated[str, arg(metavar="FOLDER", help_behavior_hint="")] = "",
    json: bool = False,
) -> None:
    """Check that two jobs of a place can share a folder: locks, clocks, versions, devices, data.

    Exits with 1 where the file system grants one lock to two jobs.

    Example: torchcaps places check . --on slurm:partition=gpu,time=10m

    Args:
        root: Folder that the machines share, from which sweeps are started.
        on: The place: local, slurm[:partition=…,time=…,gpus=…] or ray[:HOST:PORT].
        env: Environment variables of this process that the jobs get too, by name.
        data_root: Folder of the data sets.
        json: Print as JSON.
    """
    from dataclasses import asdict

    from torchcaps.places.check import check_place
    from torchcaps.places.run import with_env

    findings = []
    for finding in check_place(root, with_env(on, env), data_root):
        findings.append(finding)
        if not json:
            say(
                f"{'ok  ' if finding.good else 'no  ' if finding.fatal else 'note'}  {finding.text}"
            )
    if json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.fatal for finding in findings):
        raise TorchcapsError(f"{root} on {on}: not a safe place for runs.")
