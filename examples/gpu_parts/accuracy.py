"""Executors against PyTorch in float64."""

from functools import partial
from statistics import median
from typing import Any

import numpy as np

from codegen.cuda.executor import CudaExecutor
from codegen.cuda.turns import turn
from gpu_parts.study import Study
from planner import zoo
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.precision import mixed_precision
from planner.zoo import Sizes

NETWORKS: dict[str, dict[str, int]] = {
    "mlp": {"batch": 8},
    "digits_cnn": {"batch": 8},
    "resnet50": {"batch": 8, "image_size": 64},
    "lstm": {"batch": 4},
    "wide_deep": {"batch": 16},
    "resnet18": {"batch": 8, "image_size": 64},
    "alexnet": {"batch": 4, "image_size": 96},
    "inception_v3": {"batch": 2, "image_size": 139},
    "densenet121": {"batch": 4, "image_size": 64},
    "gpt2": {"batch": 1, "classes": 512},  # of 128 tokens: references draw dropout's numbers on a processor
    "dcgan": {"batch": 8},
    "dcgan_generator": {"batch": 8},
    "dcgan_discriminator": {"batch": 8},
    "vgg16": {"batch": 2, "image_size": 64},
    "resnet34": {"batch": 8, "image_size": 64},
    "resnet101": {"batch": 8, "image_size": 64},
    "inception_v4": {"batch": 2, "image_size": 139},
    "alexnet_lrn": {"batch": 2},
    "resnet152": {"batch": 8, "image_size": 64},
}
NATURAL: dict[str, dict[str, int]] = {
    "inception_v3": {"batch": 16},
    "inception_v4": {"batch": 16},
    "resnet152": {"batch": 16},
    "dcgan": {"batch": 64},
    "dcgan_generator": {"batch": 64},
    "dcgan_discriminator": {"batch": 64},
    "gpt2": {"batch": 4, "classes": 512},
}
"""In sizes that are trained, those of which a tensor was beyond the bar in the sizes above: statistics of two images
amplify rounding, PyTorch's too."""
RATE = 1e-3
"""As examples/truth_study.py: the zoo's own rates are meant for large batches."""
TOY: dict[str, dict[str, int]] = {"mlp": {"batch": 2}, "digits_cnn": {"batch": 4}}
"""On the null device."""


def built(name: str, **sizes: int) -> Graph:
    if name != "gpt2":
        return zoo.build(name, **sizes)
    b = GraphBuilder(name)
    ends = zoo.gpt2(length=128)(b, Sizes(**sizes))
    return b.finish(ends.loss, ends.prediction, zoo.NETWORKS[name].optimizer)


DRAWS = 5
"""Of parameters and inputs, in bfloat16: a single one says little of which is nearer."""


def correct(study: Study) -> None:
    """Bar: float32 without TF32 at most twice as far off as PyTorch's float32 on the same GPU, or 1e-5."""
    networks = TOY if study.null else NETWORKS
    for name in study.open(networks):
        graph = built(name, **networks[name])
        try:
            study.keep(name, judged(study, graph, rough=True))
        except Exception as error:
            study.failed(name, error)


def judged(study: Study, graph: Graph, rough: bool) -> dict[str, Any]:
    """How many tensors are farther off than that, and the worst of each kind; `beyond_both`: farther than it allows
    beside PyTorch in either memory format. `rough`: as Study.make."""
    import torch

    from codegen.branches import decisive_values
    from codegen.truth import truth, worst_per_kind

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    several = len(graph.program["train_step"].outputs) > 1
    kept = () if several else decisive_values(graph)
    _, made = study.make(graph, rough=rough, policy="sequential", keep=kept)
    with study.executor(made, seed=1, poison=True) as executor:
        if several:
            return _alternating(study, graph, executor)
        executor.lr = RATE
        alone = partial(turn, study.device, study.null)
        verdicts = truth(graph, executor, control=True, device=study.torch_device, alone=alone)
    verdict, control = verdicts["executor"], verdicts["channels_last"]
    worst = {r.kind: {**r._asdict(), "ratio": r.ratio} for r in worst_per_kind(verdict.rows)}
    wrong = [x._asdict() for x in verdict.wrong]
    other = {(r.kind, r.name): 2 * r.error for r in control.rows}
    both = sum(not r.error <= max(r.allowed, other[r.kind, r.name]) for r in verdict.rows)
    told = {"wrong": len(wrong), "beyond_both": both, "tensors": len(verdict.rows)}
    told |= {"ratios": {k: r["ratio"] for k, r in worst.items()}}
    beside = {"wrong": len(control.wrong), "ratios": {r.kind: r.ratio for r in worst_per_kind(control.rows)}}
    return {**told, "pytorch_channels_last": beside, "worst": worst, "first_wrong": wrong[:10]}


def _alternating(study: Study, graph: Graph, executor: CudaExecutor) -> dict[str, Any]:
    """Of a step of several losses that train different parameters, where gradients are not one thing: losses and
    parameters after its steps."""
    import torch

    from codegen.steps import random_inputs
    from codegen.torch_twin import Twin
    from codegen.truth import compare

    start, courses = executor.state_dict(), []
    batches = [random_inputs(graph) for _ in range(3)]
    plain, images = torch.contiguous_format, torch.channels_last
    for dtype, lies in ((torch.float64, plain), (torch.float32, plain), (torch.float32, images)):
        twin = Twin(graph).to(dtype).load(dict(start)).to(study.torch_device).of_images(lies)
        step = twin.alternating()
        tensors = [[_image(torch.as_tensor(a).to(study.torch_device, dtype), lies) for a in b] for b in batches]
        losses = {f"loss {n}": step(*given).numpy(force=True) for n, given in enumerate(tensors, 1)}
        courses.append(losses | {name: t.numpy(force=True) for name, t in twin.named_values()})
    true, theirs, control = courses
    mine = {f"loss {n}": np.float64(float(executor.step(*batch))) for n, batch in enumerate(batches, 1)}
    errors, others, more = (compare(each, true) for each in (mine | executor.state_dict(), theirs, control))
    beside = {name: error / max(1e-5, 2 * others[name]) for name, error in errors.items()}
    both = sum(not error <= max(1e-5, 2 * others[name], 2 * more[name]) for name, error in errors.items())
    wrong = sum(not r <= 1 for r in beside.values())
    return {"wrong": wrong, "beyond_both": both, "tensors": len(beside), "worst": max(beside.values())}


def _image(tensor: Any, memory_format: Any) -> Any:
    return tensor.contiguous(memory_format=memory_format) if tensor.ndim == 4 else tensor


def bfloat16(study: Study) -> None:
    """Bar: no further from float64 than PyTorch's autocast. Medians over draws."""
    networks = TOY if study.null else NETWORKS
    for name in study.open(n for n in networks if n != "dcgan"):
        try:
            study.keep(name, judged_mixed(study, built(name, **networks[name]), rough=True))
        except Exception as error:
            study.failed(name, error)


def judged_mixed(study: Study, graph: Graph, rough: bool, draws: int = DRAWS) -> dict[str, Any]:
    """Of losses, gradients and parameters. `rough`: as Study.make."""
    from codegen.autocast import distances

    found: dict[str, list[tuple[float, float]]] = {}
    _, made = study.make(mixed_precision(graph), "bf16", rough=rough, policy="sequential")
    for draw in range(draws):
        with study.executor(made, seed=1 + draw, poison=True) as executor:
            executor.lr = RATE
            for row in distances(graph, executor, device=study.torch_device, seed=10 * draw):
                found.setdefault(row.kind, []).append((row.executor, row.autocast))
    return {kind: _medians(pairs) for kind, pairs in found.items()}


def _medians(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    mine, theirs = median(a for a, _ in pairs), median(b for _, b in pairs)
    return {"executor": mine, "autocast": theirs, "ratio": median(a / b for a, b in pairs), "ok": mine <= theirs}
