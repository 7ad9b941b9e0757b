"""The launcher: Lightning's hint about srun is for SLURM jobs alone."""

import pytest

from torchcaps.training.hardware import make_fabric
from torchcaps.training.recipe import HardwareSpec


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"}])
def test_one_process_trains_where_srun_is_installed(tmp_path, monkeypatch, job):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert make_fabric(HardwareSpec(accelerator="cpu")).world_size == 1  # warnings are errors
