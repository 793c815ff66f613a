"""Figures 10 and 12: complete, to scale, well-formed, and safe whatever the names are."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

from planner.report.chart import HEIGHT, WIDTH
from planner.report.memory_pictures import WorkspaceBar, stages_picture, workspace_picture
from planner.solve.superneurons.layer_accounting import STAGES, Profile, StepMemory, profile
from planner.solve.superneurons.paper_layers import Kind, Layer, Layers
from planner.units import Bytes
from tests.report.hostile import NASTY

SVG = "{http://www.w3.org/2000/svg}"


def small() -> Layers:
    kinds = (Kind.DATA, Kind.CONV, Kind.ACT, Kind.FC, Kind.SOFTMAX)
    rows = [(k.value, k, (before.value,) if before else ()) for before, k in pairwise((None, *kinds))]
    return Layers(tuple(Layer(i, k, inputs, 1 << 20) for i, k, inputs in rows))


def numbers(path: str) -> list[float]:
    return [float(n) for n in re.findall(r"-?\d+\.\d+", path)]


def test_every_stage_has_its_curves_to_scale() -> None:
    profiles = [profile(small(), stage) for stage in STAGES]
    page = ET.fromstring(stages_picture("small", profiles))
    curves = {p.find(f"{SVG}title").text: p.get("d", "") for p in page.iter(f"{SVG}path")}  # type: ignore[union-attr]
    assert set(curves) == {*STAGES, *(f"{s}, live tensors" for s in STAGES)}
    top = max(s.bytes for p in profiles for s in p.steps)
    for made in profiles:
        points = numbers(curves[made.stage])
        assert points[0::2][-1] == WIDTH
        heights = points[1::2][::2]
        assert heights == [round(HEIGHT * (1 - s.bytes / top), 2) for s in made.steps]
    legend = [t.text or "" for t in page.iter(f"{SVG}text") if "(peak" in (t.text or "")]
    assert len(legend) == len(STAGES)


def test_workspaces_lie_within_the_free_bytes() -> None:
    bars = [WorkspaceBar("conv1", 200, 50, "gemm"), WorkspaceBar("conv2", 100, 100, "fft")]
    page = ET.fromstring(workspace_picture("two", bars))
    shapes = [r for r in page.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert [float(r.get("height", "")) for r in shapes] == [HEIGHT, HEIGHT / 4, HEIGHT / 2, HEIGHT / 2]


def test_nothing_to_draw_is_drawn() -> None:
    ET.fromstring(stages_picture("none", []))
    ET.fromstring(workspace_picture("none", []))


def test_names_cannot_break_out() -> None:
    step = StepMemory(1, NASTY, Bytes(1), 1, ("x",))
    for page in (
        stages_picture(NASTY, [Profile("liveness", (step,), 0)]),
        workspace_picture(NASTY, [WorkspaceBar(NASTY, 2, 1, NASTY)]),
    ):
        tags = {e.tag.removeprefix(SVG) for e in ET.fromstring(page).iter()}
        assert tags <= {"svg", "title", "rect", "text", "g", "path"}
