"""cuDNN's engines for a GPU that is not there: the library plans for one that is described to it, so that what
profiling would time and what a plan would name are looked at without a GPU."""

import json
import re

import pytest

from codegen.cpu.shapes import CONV_KINDS, ONE_DEEP
from codegen.cuda.probe import KINDS, conv_fields, probe
from planner.graph.model import DType
from planner.graph.precision import mixed_precision
from planner.ops.signature import signatures_of
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.graphs import small_net

H200 = json.dumps(
    {
        "deviceVer": 900,
        "deviceName": "NVIDIA H200",
        "driverVer": 13000,
        "cudaDeviceId": 0,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 150_000_000_000,
        "multiProcessorCount": 132,
        "smClockRateKHz": 1_980_000,
        "memClockRateKHz": 3_201_000,
        "l2CacheSize": 62_914_560,
        "warpSize": 32,
        "regsPerBlock": 65536,
        "maxRegistersPerSM": 65536,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 232_448,
        "reservedSharedMemoryPerBlock": 1024,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "maxGridSize": [2_147_483_647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
    }
)


@needs_toolkit
@pytest.mark.parametrize(("precision", "hopper"), [("float32", False), ("tf32", True), ("bf16", True)])
def test_every_offer_is_planned_again_by_its_name(precision: str, hopper: bool) -> None:
    """Offers are names, each planned anew from its name. Matrix units come with clusters of blocks (knobs 27, 28)."""
    graph = mixed_precision(small_net()) if precision == "bf16" else small_net()
    clusters = False
    for signature in signatures_of([graph]):
        if signature.op in CONV_KINDS:
            kind, low = KINDS[CONV_KINDS[signature.op]], signature.inputs[0].dtype is DType.BFLOAT16
            shape = conv_fields(signature)
            shape = (32, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, 1, *ONE_DEEP) if shape[7] == 3 else shape
            # With a bias, engines that add it: in bfloat16 a sum would be rounded twice otherwise.
            biased = kind == "forward" and shape[7] == 3
            found = probe("sm_90", False).offers(H200, kind, shape, precision == "tf32", low, biased)
            assert found, (kind, shape)
            assert all(re.fullmatch(r"(biased_)?engine_\d+(\.\d+_\d+)*", name) for name, _, _ in found)
            assert all(name.startswith("biased_") == biased for name, _, _ in found)
            assert all(0 <= workspace < 2**30 for _, workspace, _ in found)
            clusters = clusters or any(".27_" in name for name, _, _ in found)
    assert clusters == hopper


@needs_toolkit
@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_no_window_reaches(kind: str) -> None:
    """Padded by 1 in front alone, with windows of 3 by strides of 3: the last two rows and columns are left out."""
    shape = (32, 64, 55, 55, 64, 18, 18, 3, 3, 3, 3, 1, 1, 1, 1, 1, *ONE_DEEP)
    assert probe("sm_90", False).offers(H200, kind, shape, False, False, False)


VOLUMES = {
    "cubes": ((4, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, 1), (16, 16, 3, 1, 1, 1)),
    "one channel": ((2, 1, 64, 64, 16, 64, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1), (32, 32, 3, 1, 1, 1)),
    "few channels": ((2, 6, 9, 10, 10, 9, 10, 3, 3, 1, 1, 1, 1, 1, 1, 1), (8, 8, 3, 1, 1, 1)),
    "strides": ((4, 64, 56, 56, 128, 28, 28, 2, 2, 2, 2, 0, 0, 1, 1, 1), (16, 8, 2, 2, 0, 1)),
    "dilation": ((4, 32, 32, 32, 32, 32, 32, 3, 3, 1, 1, 2, 2, 2, 2, 1), (16, 16, 3, 1, 2, 2)),
    "depthwise": ((4, 64, 56, 56, 64, 56, 56, 3, 3, 1, 1, 1, 1, 1, 1, 64), (16, 16, 3, 1, 1, 1)),
    "depths alone": ((4, 64, 28, 28, 64, 28, 28, 1, 1, 1, 1, 0, 0, 1, 1, 1), (16, 16, 3, 1, 1, 1)),
    "padded in front": ((4, 64, 28, 28, 64, 28, 28, 3, 3, 1, 1, 1, 1, 1, 1, 1), (16, 15, 3, 1, 1, 1)),
}
"""Conv's fields: those of images, and Depth's."""


@needs_toolkit
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name: str, kind: str) -> None:
    """In every precision there are engines; with a bias, those that add it."""
    fields, depth = VOLUMES[name]
    for precision in ("float32", "tf32", "bf16"):
        for biased in (False, True) if kind == "forward" else (False,):
            given = ((*fields, *depth), precision == "tf32", precision == "bf16", biased)
            found = probe("sm_90", False).offers(H200, kind, *given)
            assert found, precision
            assert all(re.fullmatch(r"(biased_)?engine_\d+(\.\d+_-?\d+)*", name) for name, _, _ in found)
            assert all(name.startswith("biased_") == biased for name, _, _ in found)
