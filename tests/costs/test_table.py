"""costs.json, edited."""

import json
from pathlib import Path

import pytest

from planner.costs.model import modelled_costs
from planner.costs.table import costs_text, read_costs
from planner.errors import UserError
from tests.codegen.plans import target_of
from tests.graphs import small_net


def test_a_wrong_time_is_told_with_its_signature(tmp_path: Path) -> None:
    document = json.loads(costs_text(modelled_costs(small_net(), target_of(2))))
    document["entries"][3]["cold_ns"] = [-1.0]
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(document))
    with pytest.raises(UserError) as caught:
        read_costs(file)
    assert caught.value.code == "SP1201"
    signature = document["entries"][3]["signature"]
    assert f"entries.3.cold_ns ({signature[:60]}" in caught.value.problem
