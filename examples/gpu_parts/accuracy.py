"""Executors against PyTorch in float64."""

from gpu_parts.study import Study
from planner import zoo
from planner.graph.precision import mixed_precision

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
    "gpt2": {"batch": 1, "classes": 512},
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
RATE = 1e-3
"""As examples/truth_study.py: the zoo's own rates are meant for large batches."""
TOY: dict[str, dict[str, int]] = {"mlp": {"batch": 2}, "digits_cnn": {"batch": 4}}
"""On the null device."""


def correct(study: Study) -> None:
    """Bar: float32 without TF32 at most twice as far off as PyTorch's float32, or 1e-5."""
    from codegen.branches import decisive_values
    from codegen.truth import truth, worst_per_kind

    networks = TOY if study.null else NETWORKS
    for name in study.open(networks):
        graph = zoo.build(name, **networks[name])
        try:
            _, made = study.make(graph, rough=True, policy="sequential", keep=decisive_values(graph))
            with study.executor(made, seed=1, poison=True) as executor:
                executor.lr = RATE
                verdict = truth(graph, executor)["executor"]
        except Exception as error:
            study.failed(name, error)
            continue
        worst = {r.kind: {**r._asdict(), "ratio": r.ratio} for r in worst_per_kind(verdict.rows)}
        wrong = [x._asdict() for x in verdict.wrong]
        told = {"wrong": len(wrong), "tensors": len(verdict.rows), "ratios": {k: r["ratio"] for k, r in worst.items()}}
        study.keep(name, {**told, "worst": worst, "first_wrong": wrong[:10]})


def bfloat16(study: Study) -> None:
    """Bar: no further from float64 than PyTorch's autocast."""
    from codegen.autocast import distances

    networks = TOY if study.null else NETWORKS
    for name in study.open(networks):
        graph = zoo.build(name, **networks[name])
        try:
            _, made = study.make(mixed_precision(graph), "bf16", rough=True, policy="sequential")
            with study.executor(made, seed=1, poison=True) as executor:
                executor.lr = RATE
                rows = distances(graph, executor, device="cpu" if study.null else f"cuda:{study.device}")
        except Exception as error:
            study.failed(name, error)
            continue
        study.keep(name, {r.kind: {**r._asdict(), "ok": r.ok} for r in rows})
