"""The examples run, at small size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("arguments", [("--epochs", "3", "--width", "8", "--budget", "2")])
def test_torch_module(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A PyTorch user's way: it learns, and the weights work in PyTorch."""
    script = [sys.executable, str(ROOT / "examples" / "torch_module.py"), *arguments, "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    accuracy = float(done.stdout.split("held-out accuracy")[1].split("%")[0])
    assert accuracy > 90
    assert float(done.stdout.split("same within")[1]) < 1e-3


def test_gpu_study_without_a_gpu(tmp_path: Path) -> None:
    """A dry run: the script holds together, whatever its times mean."""
    out = tmp_path / "results.json"
    script = [sys.executable, str(ROOT / "examples" / "gpu_study.py"), "machine", "--null"]
    done = subprocess.run(
        [*script, "--out", str(out), "--folder", str(tmp_path)], capture_output=True, text=True, cwd=ROOT, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(out.read_text())["machine"]["convolutions"]
