"""MobileNetV2, MobileNetV3 and EfficientNet: inverted residual blocks around depthwise convolutions."""

from torch import Tensor, nn

from tests.models.parts import SGD, Conv, Made, SqueezeExcite, images


class InvertedResidual(nn.Module):
    """Expand, filter every channel on its own, squeeze-excite, project."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: int,
        stride: int = 1,
        kernel: int = 3,
        act: type[nn.Module] = nn.ReLU6,
        squeeze: tuple[int, type[nn.Module], type[nn.Module]] | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [Conv(inputs, hidden, 1, act=act)] if hidden != inputs else []
        layers.append(Conv(hidden, hidden, kernel, stride, groups=hidden, act=act))
        if squeeze is not None:
            layers.append(SqueezeExcite(hidden, *squeeze))
        layers.append(Conv(hidden, outputs, 1, act=None))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV2(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10, blocks: int = 2) -> None:
        super().__init__()
        self.features = nn.Sequential(
            Conv(3, width, stride=2, act=nn.ReLU6),
            InvertedResidual(width, width, hidden=width),
            InvertedResidual(width, 2 * width, hidden=6 * width, stride=2),
            *(InvertedResidual(2 * width, 2 * width, hidden=12 * width) for _ in range(blocks - 1)),
            Conv(2 * width, 4 * width, 1, act=nn.ReLU6),
        )
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class MobileNetV3(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10, large: bool = False) -> None:
        super().__init__()
        gate = (width, nn.ReLU, nn.Hardsigmoid)
        layers: list[nn.Module] = [
            Conv(3, width, stride=2, act=nn.Hardswish),
            InvertedResidual(width, width, hidden=width, stride=2, act=nn.ReLU, squeeze=gate),
            InvertedResidual(width, 2 * width, hidden=3 * width, kernel=5, act=nn.Hardswish, squeeze=gate),
        ]
        if large:
            layers.append(InvertedResidual(2 * width, 2 * width, hidden=5 * width, act=nn.Hardswish))
        self.features = nn.Sequential(*layers, Conv(2 * width, 6 * width, 1, act=nn.Hardswish))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(6 * width, 8 * width),
            nn.Hardswish(inplace=True),
            nn.Dropout(0.2, inplace=True),
            nn.Linear(8 * width, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(x)).flatten(1))


class EfficientNet(nn.Module):
    """SiLU, squeeze-excite with a sigmoid; `fused`: as EfficientNetV2 begins, with a full convolution that expands."""

    def __init__(self, width: int = 8, classes: int = 10, fused: bool = False) -> None:
        super().__init__()
        gate = (width // 4, nn.SiLU, nn.Sigmoid)
        first: nn.Module = (
            nn.Sequential(Conv(width, 4 * width, act=nn.SiLU), Conv(4 * width, width, 1, act=None))
            if fused
            else InvertedResidual(width, width, hidden=width, act=nn.SiLU, squeeze=gate)
        )
        self.features = nn.Sequential(
            Conv(3, width, stride=2, act=nn.SiLU),
            first,
            InvertedResidual(width, 2 * width, hidden=6 * width, stride=2, kernel=5, act=nn.SiLU, squeeze=gate),
            Conv(2 * width, 4 * width, 1, act=nn.SiLU),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(4 * width, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def mobilenet_v2(batch: int = 4) -> Made:
    return MobileNetV2(), images(batch, 16), SGD


def mobilenet_v2_wide(batch: int = 2) -> Made:
    return MobileNetV2(width=12, classes=7, blocks=3), images(batch, 20), SGD


def mobilenet_v3_small(batch: int = 4) -> Made:
    return MobileNetV3(), images(batch, 16), SGD


def mobilenet_v3_large(batch: int = 3) -> Made:
    return MobileNetV3(width=12, classes=5, large=True), images(batch, 24), SGD


def efficientnet(batch: int = 4) -> Made:
    return EfficientNet(), images(batch, 16), SGD


def efficientnet_v2(batch: int = 3) -> Made:
    return EfficientNet(width=12, classes=6, fused=True), images(batch, 20), SGD


FACTORIES = (mobilenet_v2, mobilenet_v2_wide, mobilenet_v3_small, mobilenet_v3_large, efficientnet, efficientnet_v2)
