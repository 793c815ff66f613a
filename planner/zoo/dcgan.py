"""DCGAN (Radford et al.) as PyTorch's example trains it: 64 x 64 images, 100 noise channels, 64 features, Adam.

    dcgan_generator      noise -> images; the loss is binary cross entropy of a fixed discriminator, asked to say "real"
    dcgan_discriminator  real and generated images; the loss is the sum of both binary cross entropies
    dcgan                the whole step: train the discriminator on real and generated images, then the generator
                         against the discriminator as it is after that

The discriminator's sigmoid is part of the loss (binary cross entropy with logits), and its weights in
`dcgan_generator` are parameters that are not trained. Weights start from normal(0, 0.02) as in the paper; the scales of
batch norms from 1.
"""

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Init, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.shape import FillAttrs
from planner.zoo.network import Ends, Sizes, images_of

NOISE, FEATURES, CHANNELS, SIZE = 100, 64, 3, 64
ADAM = Optimizer(kind="adam", lr=2e-4, beta1=0.5, beta2=0.999)


def dcgan(b: GraphBuilder, sizes: Sizes) -> Ends:
    """Inputs: images, noise. `step` returns the discriminator's loss, `losses` both."""
    images = images_of(b, sizes._replace(image_size=SIZE), CHANNELS)
    fakes = generator(b, noise_of(b, sizes))
    loss = _discriminator_loss(b, images, fakes)
    b.objective(loss, ADAM, _parameters(b, "discriminator"))
    with b.sharing():
        verdict = discriminator(b, fakes)
    return Ends(_against(b, verdict, 1.0, "generator.loss"), fakes)


def dcgan_generator(b: GraphBuilder, sizes: Sizes) -> Ends:
    """Input: noise. The discriminator's running statistics move, as they do in PyTorch."""
    fakes = generator(b, noise_of(b, sizes))
    verdict = discriminator(b, fakes)
    b.frozen |= _parameters(b, "discriminator")
    return Ends(_against(b, verdict, 1.0, "generator.loss"), fakes)


def dcgan_discriminator(b: GraphBuilder, sizes: Sizes) -> Ends:
    """Inputs: images, and fakes: what a generator made. The prediction is the verdict on the images, before the
    sigmoid."""
    images = images_of(b, sizes._replace(image_size=SIZE), CHANNELS)
    fakes = b.input("fakes", b.type(images))
    loss = _discriminator_loss(b, images, fakes)
    return Ends(loss, "discriminator.verdict.y")


def noise_of(b: GraphBuilder, sizes: Sizes) -> str:
    return b.input("noise", TensorType(shape=(sizes.batch, NOISE, 1, 1)))


def generator(b: GraphBuilder, noise: str) -> str:
    """(N, 100, 1, 1) -> (N, 3, 64, 64) between -1 and 1; names as in `nn.Sequential`."""
    x = noise
    for index, widening in enumerate((8, 4, 2, 1)):
        stride, padding = (2, 1) if index else (1, 0)
        layer = f"generator.main.{3 * index}"
        x = layers.conv_transpose2d(b, x, FEATURES * widening, 4, stride, padding, bias=False, name=layer)
        x = layers.batch_norm(b, x, name=f"generator.main.{3 * index + 1}")
        x = layers.relu(b, x, name=f"generator.main.{3 * index + 2}")
    x = layers.conv_transpose2d(b, x, CHANNELS, 4, 2, 1, bias=False, name="generator.main.12")
    _start_normal(b, "generator")
    return layers.unary(b, "tanh", x, name="generator.main.13")


def discriminator(b: GraphBuilder, images: str) -> str:
    """(N, 3, 64, 64) -> (N,): above 0 for images that look real."""
    x = layers.conv2d(b, images, FEATURES, 4, 2, 1, bias=False, name="discriminator.main.0")
    x = layers.leaky_relu(b, x, 0.2, name="discriminator.main.1")
    for index, widening in enumerate((2, 4, 8)):
        layer = f"discriminator.main.{3 * index + 2}"
        x = layers.conv2d(b, x, FEATURES * widening, 4, 2, 1, bias=False, name=layer)
        x = layers.batch_norm(b, x, name=f"discriminator.main.{3 * index + 3}")
        x = layers.leaky_relu(b, x, 0.2, name=f"discriminator.main.{3 * index + 4}")
    x = layers.conv2d(b, x, 1, 4, bias=False, name="discriminator.main.11")
    _start_normal(b, "discriminator")
    return layers.reshape(b, x, (-1,), name="discriminator.verdict")


def _discriminator_loss(b: GraphBuilder, images: str, fakes: str) -> str:
    real = _against(b, discriminator(b, images), 1.0, "real.loss")
    with b.sharing():
        verdict = discriminator(b, fakes)
    return layers.add(b, real, _against(b, verdict, 0.0, "fake.loss"), name="discriminator.loss")


def _against(b: GraphBuilder, verdict: str, label: float, name: str) -> str:
    (target,) = b.op("ones", [], FillAttrs(shape=b.shape(verdict), value=label), name=f"{name}.label")
    return layers.bce_with_logits(b, verdict, target, name=name)


def _parameters(b: GraphBuilder, network: str) -> set[str]:
    return {v.id for v in b.values.values() if v.role is Role.PARAMETER and v.id.startswith(f"{network}.")}


def _start_normal(b: GraphBuilder, network: str) -> None:
    for name in _parameters(b, network):
        if len(b.shape(name)) == 4:
            b.values[name] = b.values[name].model_copy(update={"init": Init(kind="normal", value=0.02)})
