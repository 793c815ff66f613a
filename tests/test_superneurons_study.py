"""The study as a newcomer runs it: published numbers, JSON, pictures."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

STUDY = Path(__file__).parent.parent / "examples" / "superneurons_study.py"


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("superneurons_study", STUDY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_json_and_pictures(tmp_path: Path) -> None:
    command = [sys.executable, str(STUDY), "stages", "table1", "figure12", "--json", "--pictures", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [round(r["peak_mb"], 3) for r in found["stages"]] == [2189.437, 1489.355, 1132.056, 886.23]
    assert all(len(r["steps"]) == 46 for r in found["stages"])
    assert [r["recomputed"] for r in found["table1"]] == [14, 23, 17, 84, 118, 85, 169, 237, 170]
    assert all(r["workspace_mb"] <= r["free_mb"] for r in found["figure12"])
    assert {f.name for f in tmp_path.iterdir()} == {
        "figure10.svg",
        "figure12_b100.svg",
        "figure12_b300.svg",
        "figure12_b450.svg",
    }


@pytest.mark.parametrize(("limit", "known"), [(5, 5), (6, 5), (9, 5), (10, 5), (173, 5), (1000, 999)])
def test_bisection_finds_the_limit(study: ModuleType, limit: int, known: int) -> None:
    assert study.largest(lambda n: n <= limit, known) == limit
    assert limit - 8 < study.largest(lambda n: n <= limit, known, 8) <= limit


def test_depth_counts_convolutions_and_the_classifier(study: ModuleType) -> None:
    # ResNet-50 has 3 + 4 + 6 + 3 blocks; n3 = 596 is the first with the published 1920 layers.
    assert study.depth(6) == 3 * (6 + 32 + 6 + 6) + 2
    assert study.depth(595) < study.TABLE_4 <= study.depth(596)


def test_text_has_dashes_where_nothing_was_published(study: ModuleType) -> None:
    lines = study.TEXTS["table3"]([{"batch": 7, "published_without_gb": None, "without_gb": 1.0}])
    assert lines[1].split() == ["7", "-", "-", "1.00", "-", "-", "-"]


def test_unknown_parts_are_refused() -> None:
    done = subprocess.run([sys.executable, str(STUDY), "table9"], capture_output=True, text=True)
    assert done.returncode == 2 and "table9" in done.stderr
