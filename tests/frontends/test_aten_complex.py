"""Complex numbers and Fourier transforms against PyTorch in float64, all gradients."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fft, nn

from planner.errors import UserError
from planner.frontends import aten_spectra
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import DType
from planner.graph.precision import mixed_precision
from planner.ops.matmul import MatmulAttrs
from planner.ops.signature import signature_of
from tests.frontends.torch_agreement import Function, agree
from tests.torch_modules import spectral


def pairs(x: Tensor) -> Tensor:
    """(n, 12) as six complex numbers."""
    return torch.view_as_complex(x.reshape(-1, 6, 2))


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return pairs(x)


def flat(z: Tensor) -> Tensor:
    return torch.view_as_real(z.resolve_conj()).reshape(z.shape[0], -1)


def filled(x: Tensor) -> Tensor:
    z = torch.zeros(4, 4, dtype=torch.complex128 if x.dtype is torch.float64 else torch.complex64)
    z[:, 1:3] = pairs(x)[:, :2]
    z[:, -1] = 1.0 + 2.0j
    return flat(z + pairs(x)[:, 2:])


def strided(x: Tensor) -> Tensor:
    z = torch.stft(x, 8, hop_length=4, window=torch.hann_window(8, dtype=x.dtype), return_complex=True)
    return z.abs().reshape(x.shape[0], -1)


def there_and_back(x: Tensor) -> Tensor:
    window = torch.hann_window(8, dtype=x.dtype)
    z = torch.stft(x, 8, hop_length=2, window=window, return_complex=True)
    return torch.istft(z * z.abs(), 8, hop_length=2, window=window, length=12)


def few_and_all(x: Tensor) -> Tensor:
    found = fft.rfft(x)
    return flat(torch.cat([found[:, :2], found[:, 5:] * 2, found[:, 2:4]], 1)) + x * found.abs().sum(1, keepdim=True)


def spectrum(x: Tensor) -> Tensor:
    """(n, 12) as images of 3 x 4 numbers."""
    return fft.fft2(x.reshape(-1, 3, 4).to(torch.complex128 if x.dtype is torch.float64 else torch.complex64))


def written(x: Tensor) -> Tensor:
    found, out = fft.rfft(x), torch.zeros_like(fft.rfft(x))
    out[:, :2] = found[:, :2] * 1j
    out[:, -3:] = found[:, 1:4].conj()
    return fft.irfft(out, n=12)


def written_twice(x: Tensor) -> Tensor:
    found, out = fft.rfft(x), torch.zeros_like(fft.rfft(x))
    out[:, :4] = found[:, :4]
    out[:, 3:5] = found[:, :2] * 2
    return fft.irfft(out, n=12)


def written_over(x: Tensor) -> Tensor:
    found, out = fft.rfft(x), torch.zeros_like(fft.rfft(x))
    out[:, 2:4] = found[:, 2:4]
    out[:, 1:6] = found[:, :5] * 2
    return fft.irfft(out, n=12)


def blocks(x: Tensor) -> Tensor:
    """As Fourier neural operators of both kinds: corners; and the middle of what was shifted there."""
    found, out = spectrum(x), torch.zeros_like(spectrum(x))
    out[:, :1, :2] = found[:, :1, :2] * 2
    out[:, -1:, :2] = found[:, -1:, :2] * 3
    middle = torch.zeros_like(out)
    middle[:, 1:, 1:3] = fft.fftshift(found, dim=(1, 2))[:, 1:, 1:3]
    return (fft.ifft2(out) + fft.ifft2(fft.ifftshift(middle, dim=(1, 2)))).real.reshape(-1, 12)


def other_axes(x: Tensor) -> Tensor:
    """Parts along axes that are not transformed; parts of parts; more than parts."""
    found, out = fft.rfft(x.reshape(-1, 3, 4)), torch.zeros_like(fft.rfft(x.reshape(-1, 3, 4)))
    out[:, 1:, :2] = found[:, 1:, :2]
    half = out[:, :2]
    return (fft.irfft(out, n=4) + fft.irfft(half[:, 1:] * 2, n=4) + fft.irfft(out[:, :1, ::2], n=4)).reshape(-1, 12)


def corners(x: Tensor) -> Tensor:
    """As three-dimensional Fourier neural operators: parts that differ from each other in more than one axis."""
    found = fft.rfftn(x.reshape(-1, 4, 3, 1), dim=(1, 2, 3))
    out = torch.zeros_like(found)
    for first in (slice(0, 1), slice(-1, None)):
        for second in (slice(0, 1), slice(-1, None)):
            out[:, first, second] = found[:, first, second] * 1j
    return fft.irfftn(out, s=(4, 3, 1), dim=(1, 2, 3)).reshape(-1, 12)


def not_only_zeros(x: Tensor) -> Tensor:
    out = torch.ones_like(fft.rfft(x)) * x[:, :1]
    out[:, 1:3] = fft.rfft(x)[:, 1:3]
    out[:, 6] = 2.0
    return fft.irfft(out, n=12)


def upright(x: Tensor) -> Tensor:
    """Three numbers of one imaginary part each, as a column."""
    return x[:3, :1] * 1j


def written_in_places(x: Tensor) -> Tensor:
    z, places = pairs(x), (x.detach() * 10).long()[:, :6] % 4
    there = torch.zeros_like(z).index_put((places[:, 0],), z, accumulate=True) + z[places[:, 1]]
    return flat(there + torch.zeros_like(z).scatter_add(0, places, z) + z.gather(0, places) * 1j)


def chosen(x: Tensor) -> Tensor:
    z, mask = pairs(x), x[:, :6] > 0
    return flat(torch.where(mask, z, 1.0) + torch.where(mask, 2j, z.conj()) + z.masked_fill(mask, 1 + 1j))


def like(x: Tensor, *shape: int) -> Tensor:
    """Complex constants as wide as x."""
    steps = torch.arange(math.prod(shape), dtype=x.dtype).reshape(shape)
    return torch.polar(1 + 0.1 * steps, steps)


def layers(x: Tensor) -> Tensor:
    z = pairs(x)
    y = nn.functional.linear(z, like(x, 5, 6), like(x, 5)) + nn.functional.linear(z, like(x, 5, 6))
    y = torch.addmm(like(x, 5), y, like(x, 5, 5), beta=2, alpha=1j) / 20
    return flat(torch.cat([y, (z @ like(x, 6)).outer(like(x, 3)[:1])], 1))


def filters(x: Tensor) -> Tensor:
    z = pairs(x).reshape(2, 2, 6)
    y = nn.functional.conv1d(z, like(x, 2, 2, 3), like(x, 2), padding=1) + z.real
    images = nn.functional.conv2d(y.reshape(2, 2, 2, 3), like(x, 2, 1, 1, 3), padding="same", groups=2)
    return flat(nn.functional.conv_transpose2d(images, like(x, 2, 2, 1, 1), like(x, 2)).reshape(4, 6))


FUNCTIONS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("one imaginary part for all", lambda x: flat((x[:, :6] + 1j).cumsum(1) + (2j - x[:, 6:]).sum(1, keepdim=True))),
    ("a row added", lambda x: flat(torch.stack([(x + like(x, 12)).sum(0)[:6], (x - like(x, 12)).t()[6:].sum(1)]))),
    ("a row and a column", lambda x: flat((x[3:] + upright(x)).sum(0, keepdim=True))),
    ("a row and a column, of equal size", lambda x: (x[:3] + upright(x)).real + (x[:3] + upright(x)).conj().imag),
    ("products of a row and a column", lambda x: flat((x[3:] + upright(x)) @ (1 + like(x, 12, 1) * x[:1, :1]))),
    ("of smaller parts", lambda x: flat(fft.fft(x[:2, :2] + upright(x)[:2], dim=0))),
    ("padded", lambda x: flat(nn.functional.pad(pairs(x), (1, 0), value=2.0))),
    ("in places of the data", written_in_places),
    ("chosen by the data", chosen),
    ("layers", layers),
    ("convolutions", filters),
    ("vectors", lambda x: x * (torch.vdot(pairs(x)[0], pairs(x)[1]) + pairs(x)[0] @ pairs(x)[2]).abs()),
    ("between", lambda x: flat(torch.lerp(pairs(x), pairs(x).flip(1), 0.3))),
    ("powers", lambda x: flat((pairs(x) * 0.5) ** 3 + (pairs(x) + 2) ** -2 + pairs(x).square())),
    ("roots", lambda x: flat(torch.sqrt(pairs(x)) + (pairs(x) + 3) ** 0.3 + torch.rsqrt(pairs(x)))),
    ("logarithms, signs", lambda x: flat(torch.log(pairs(x)) * torch.sgn(pairs(x)))),
    ("sines", lambda x: flat(torch.sin(pairs(x)) + torch.cos(pairs(x)) + torch.sinh(pairs(x)) + torch.cosh(pairs(x)))),
    ("variances", lambda x: x * pairs(x).var(1, keepdim=True) + pairs(x).std()),
    ("repeated", lambda x: flat(pairs(x)[:, :3].repeat_interleave(2, 1))),
    ("sum", lambda x: flat(pairs(x) + 2 * pairs(x).flip(1) - 1.5)),
    ("reversed difference", lambda x: flat(torch.rsub(pairs(x), pairs(x).roll(1, 1), alpha=0.5))),
    ("product", lambda x: flat(pairs(x) * pairs(x).conj().roll(2, 1) * (0.5 - 1j) * x[:, :6])),
    ("quotient", lambda x: flat(pairs(x) / (pairs(x).roll(1, 1) + 3) / (x[:, :6].square() + 1))),
    ("product added", lambda x: flat(torch.addcmul(pairs(x), pairs(x), pairs(x).roll(1, 1), value=0.5))),
    ("quotient added", lambda x: flat(torch.addcdiv(pairs(x), pairs(x).roll(1, 1), pairs(x) + 3, value=2))),
    ("one over", lambda x: flat(1 / (pairs(x) + 3))),
    ("size and angle", lambda x: torch.cat([pairs(x).abs(), pairs(x).angle()], 1)),
    ("norms", lambda x: x * (pairs(x).norm(dim=1, keepdim=True) + torch.linalg.vector_norm(pairs(x), 1, -1)[:, None])),
    (
        "other norms",
        lambda x: x * torch.linalg.norm(pairs(x)) + torch.linalg.vector_norm(pairs(x), float("inf"), 0).sum(),
    ),
    ("of size and angle", lambda x: flat(torch.polar(x[:, :6].square(), x[:, 6:]))),
    ("exponential", lambda x: flat(torch.exp(pairs(x) * 0.3))),
    ("tangent", lambda x: flat(torch.tanh(pairs(x) * 0.7))),
    ("tangent of large ones", lambda x: flat(torch.tanh(pairs(x) * 50))),
    ("parts", lambda x: torch.cat([pairs(x).real, pairs(x * 2).imag], 1)),
    ("joined", lambda x: flat(torch.complex(x[:, :6], x[:, 6:].sin()))),
    ("moved", lambda x: flat(torch.cat([pairs(x)[:, None, 3:], pairs(x)[:, None, :3] * 2], 1).permute(0, 2, 1))),
    ("means", lambda x: flat(torch.stack([pairs(x).mean(1), pairs(x).sum(1)], 1).expand(4, 2).repeat(1, 3))),
    ("picked", lambda x: flat(pairs(x)[:, torch.tensor([3, 0, 0, 5, 1, 2])])),
    ("of a real tensor", lambda x: flat(x[:, :6].to(pairs(x).dtype) * 1j)),
    ("with constants", lambda x: flat(pairs(x) * torch.exp(1j * torch.arange(6, dtype=x.dtype)))),
    ("into zeros", filled),
    ("sums of products", lambda x: flat(torch.einsum("bi,ij->bj", pairs(x), pairs(x).mT @ pairs(x).conj()))),
    ("real times complex", lambda x: flat(torch.einsum("bi,bj->bi", pairs(x), x[:, :4].to(pairs(x).dtype)))),
    ("rfft", lambda x: flat(fft.rfft(x))[:, :12]),
    ("rfft of odd length", lambda x: flat(fft.rfft(x[:, :11], norm="forward"))),
    ("rfft of more", lambda x: flat(fft.rfft(x, n=11, norm="ortho"))),
    ("rfft along rows", lambda x: flat(fft.rfft(x, dim=0).reshape(1, -1).expand(4, 36))[:, :12]),
    ("irfft", lambda x: torch.cat([fft.irfft(pairs(x)), fft.irfft(pairs(x), n=9)], 1)[:, :12]),
    ("irfft of odd length", lambda x: torch.cat([fft.irfft(pairs(x), n=11, norm="ortho"), x[:, :1]], 1)),
    ("fft", lambda x: flat(fft.fft(pairs(x), norm="ortho"))),
    ("fft of real numbers", lambda x: flat(fft.fft(x))[:, 4:16]),
    ("ifft", lambda x: flat(fft.ifft(pairs(x)))),
    ("ihfft", lambda x: flat(fft.ihfft(x[:, :10]))),
    ("hfft", lambda x: torch.cat([fft.hfft(pairs(x), norm="ortho"), x[:, :2]], 1)),
    ("rfft2 and irfft2", lambda x: fft.irfft2(fft.rfft2(x.reshape(4, 3, 4)) * 1j, s=(3, 4)).reshape(4, 12)),
    ("fftn and ifftn", lambda x: flat(fft.ifftn(fft.fftn(x.reshape(4, 2, 3, 2)).conj()).reshape(4, 12))[:, ::2]),
    ("shifted", lambda x: flat(fft.ifftshift(fft.fftshift(pairs(x), dim=1) * pairs(x), dim=1))),
    ("few and all frequencies", few_and_all),
    ("written into zeros", written),
    ("written twice", written_twice),
    ("written over", written_over),
    ("blocks", blocks),
    ("along other axes", other_axes),
    ("corners", corners),
    ("not only zeros", not_only_zeros),
    ("cut behind a shift", lambda x: flat(fft.fftshift(fft.fft(x), dim=1)[:, 4:10])),
    ("every other", lambda x: flat(fft.fft(x)[:, 1:12:2])),
    ("rolled as one row", lambda x: flat(fft.fft(x).roll(5))[:, 3:15]),
    ("stft", lambda x: strided(x)[:, :12]),
    ("istft", there_and_back),
]


@pytest.mark.parametrize(("name", "function"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_as_pytorch(name: str, function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(5)
    outputs = function(torch.randn(4, 12)).shape[1]
    agree(Function(function, width=12, outputs=outputs), torch.randn(4, 5))


def test_complex_parameters() -> None:
    torch.manual_seed(6)
    module, inputs, _ = spectral()
    graph = agree(module, *inputs, loss="mse")
    value = next(v for v in graph.values if v.name == "layers.1.low")
    assert value.type.shape == (3, 3, 2, 2, 2) and value.pairs


@pytest.mark.parametrize("extent", [12, 30, 64])
def test_long_transforms_are_made_of_shorter_ones(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of real and of complex numbers, there and back, along inner axes; in two, or in two of which one is in two."""
    monkeypatch.setattr(aten_spectra, "SHORT", 4)

    def changed(x: Tensor) -> Tensor:
        half = fft.rfft(x.reshape(2, extent, 3), dim=1, norm="ortho") * 0.5
        back = fft.irfft(half, n=extent, dim=1)
        whole = fft.ifft(fft.fft(torch.complex(back, back.sin()), dim=1), dim=1)
        few = fft.irfft(torch.cat([half[:, :2], torch.zeros_like(half[:, 2:])], 1), n=extent, dim=1)
        return (whole.abs() + few).reshape(2, -1)

    graph = agree(Function(changed, width=3 * extent, outputs=3 * extent), torch.randn(2, 5), loss="mse")
    matrices = [graph.value[n.inputs[1]].type.shape for n in graph.program["predict"].nodes if n.op == "matmul"]
    assert max(max(shape) for shape in matrices) <= {12: 8, 30: 12, 64: 16}[extent]


def test_a_long_prime_length() -> None:
    with pytest.raises(UserError, match=r"SP1002.*10007 elements, which is no product of smaller numbers"):
        capture_module(Function(lambda x: fft.rfft(x).abs(), width=10007, outputs=5004), torch.randn(1, 5))


def test_few_frequencies_are_little_work() -> None:
    """Of 64 x 48 numbers three frequencies of an axis and their opposites, three of the other."""

    def low(x: Tensor) -> Tensor:
        found = fft.rfft2(x.reshape(4, 64, 48))
        out = torch.zeros_like(found)
        out[:, :3, :3] = found[:, :3, :3] * 2
        out[:, -3:, :3] = found[:, -3:, :3]
        return fft.irfft2(out, s=(64, 48)).reshape(4, -1)

    graph = agree(Function(low, width=64 * 48, outputs=64 * 48), torch.randn(4, 5), loss="mse")
    products = [n for n in graph.program["train_step"].nodes if n.op == "matmul" and n.phase == "forward"]
    shapes = [[graph.value[v].type.shape for v in n.inputs] for n in products]
    assert shapes == [
        [(4 * 64, 48), (48, 2 * 3)],
        [(4 * 3, 2 * 64), (2 * 64, 2 * 6)],
        [(4 * 3, 2 * 6), (2 * 6, 2 * 64)],
        [(4 * 64, 2 * 3), (2 * 3, 48)],
    ]
    assert not any(
        n.op == "ones" and len(graph.value[n.outputs[0]].type.shape) > 1 for n in graph.program["predict"].nodes
    )


def test_an_operator_that_is_not_known_of_complex_numbers() -> None:
    with pytest.raises(UserError, match=r"SP1017.*aten\.sigmoid.*complex numbers"):
        capture_module(Function(lambda x: flat(torch.sigmoid(pairs(x))), width=12, outputs=12), torch.randn(4, 5))


def test_a_module_that_returns_complex_numbers() -> None:
    with pytest.raises(UserError, match=r"SP1015.*returns complex numbers"):
        capture_module(nn.Sequential(nn.Linear(5, 12), Pairs()), torch.randn(4, 5), CaptureOptions(loss="mse"))


def test_in_bfloat16_transforms_stay_in_float32() -> None:
    """And what complex numbers are multiplied with; as in PyTorch, whose autocast leaves both alone."""
    module, inputs, _ = spectral()
    graph, _ = capture_module(module, inputs, CaptureOptions(loss="mse"))
    mixed = mixed_precision(graph)
    nodes = mixed.program["train_step"].nodes
    products = [n for n in nodes if n.op == "matmul"]
    assert {n.phase for n in products} == {"forward", "backward"} and all(n.attrs.exact for n in products)
    assert {mixed.value[v].type.dtype for n in products for v in (*n.inputs, *n.outputs)} == {DType.FLOAT32}
    assert any(mixed.value[n.outputs[0]].type.dtype is DType.BFLOAT16 for n in nodes if n.op == "conv2d")
    text = next(signature_of(graph, n).text for n in graph.program["train_step"].nodes if n.op == "matmul")
    assert "exact=True" in text and "exact" not in MatmulAttrs().text()
