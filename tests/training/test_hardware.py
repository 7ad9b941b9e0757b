"""The launcher: Lightning's hint about srun is for SLURM jobs alone."""

import pytest
import torch

from torchcaps.training.hardware import evaluation_precision, make_fabric
from torchcaps.training.recipe import HardwareSpec


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "interactive"}])
def test_one_process_trains_where_srun_is_installed(tmp_path, monkeypatch, job):
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    assert make_fabric(HardwareSpec(accelerator="cpu")).world_size == 1  # warnings are errors


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("bf16", "high")])
def test_only_runs_in_full_float32_are_evaluated_without_tf32(precision, products):
    before = torch.get_float32_matmul_precision()
    with evaluation_precision(HardwareSpec(precision=precision)):
        assert torch.get_float32_matmul_precision() == products
        assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    assert torch.get_float32_matmul_precision() == before
    assert not torch.backends.cudnn.allow_tf32, "as the fixture left it"
