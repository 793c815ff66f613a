"""The zoo's networks as PyTorch modules with the same parameter names: what the zoo is compared with."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self, inputs: int = 784, classes: int = 10) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(inputs, 256), nn.Linear(256, 256), nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.fc1(images.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))


class DigitsCnn(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv2, self.bn2 = nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.conv3, self.bn3 = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.fc = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(images)))
        x = nn.functional.max_pool2d(torch.relu(self.bn2(self.conv2(x))), 2)
        x = nn.functional.adaptive_avg_pool2d(torch.relu(self.bn3(self.conv3(x))), 2)
        return self.fc(x.flatten(1))


class AlexNet(nn.Module):
    """torchvision's."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for channels, kernel, stride, padding, pool in (
            (64, 11, 4, 2, True),
            (192, 5, 1, 2, True),
            (384, 3, 1, 1, False),
            (256, 3, 1, 1, False),
            (256, 3, 1, 1, True),
        ):
            layers += [nn.Conv2d(before, channels, kernel, stride, padding), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(3, 2)] if pool else []
            before = channels
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(9216, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))


class AlexNetLrn(nn.Module):
    """SuperNeurons' 23 layers: local response norms, one tower, no groups."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, 11, 4)
        self.conv2 = nn.Conv2d(96, 256, 5, padding=2)
        self.conv3 = nn.Conv2d(256, 384, 3, padding=1)
        self.conv4 = nn.Conv2d(384, 384, 3, padding=1)
        self.conv5 = nn.Conv2d(384, 256, 3, padding=1)
        self.norm, self.pool, self.drop = nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2), nn.Dropout()
        self.fc6, self.fc7, self.fc8 = nn.Linear(9216, 4096), nn.Linear(4096, 4096), nn.Linear(4096, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.pool(self.norm(torch.relu(self.conv1(images))))
        x = self.pool(self.norm(torch.relu(self.conv2(x))))
        x = torch.relu(self.conv4(torch.relu(self.conv3(x))))
        x = self.pool(torch.relu(self.conv5(x))).flatten(1)
        x = self.drop(torch.relu(self.fc6(x)))
        return self.fc8(self.drop(torch.relu(self.fc7(x))))


class Vgg16(nn.Module):
    """torchvision's vgg16, without batch norm."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = 3
        for repeats, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
            for _ in range(repeats):
                layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU(inplace=True)]
                before = channels
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 49, 4096),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(True),
            nn.Dropout(),
            nn.Linear(4096, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(images)), 1))


class Block(nn.Module):
    """A residual block from (kernel, channels, stride) triples; the stride is in the 3 x 3 convolution."""

    def __init__(self, before: int, shape: Sequence[tuple[int, int, int]]) -> None:
        super().__init__()
        inputs = before
        for index, (kernel, channels, stride) in enumerate(shape, start=1):
            conv = nn.Conv2d(inputs, channels, kernel, stride, kernel // 2, bias=False)
            self.add_module(f"conv{index}", conv)
            self.add_module(f"bn{index}", nn.BatchNorm2d(channels))
            inputs = channels
        self.depth, self.relu = len(shape), nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        stride = prod(s for _, _, s in shape)
        if stride > 1 or before != inputs:
            conv = nn.Conv2d(before, inputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(inputs))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for index in range(1, self.depth + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            y = self.relu(y) if index < self.depth else y
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    def __init__(self, counts: Sequence[int], bottleneck: bool, classes: int = 1000) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        before = 64
        for stage, count in enumerate(counts):
            blocks, width = [], 64 * 2**stage
            for index in range(count):
                stride = 2 if stage and not index else 1
                out = 4 * width if bottleneck else width
                shape = ((1, width, 1), (3, width, stride), (1, out, 1)) if bottleneck else (
                    (3, width, stride), (3, out, 1))  # fmt: skip
                blocks.append(Block(before, shape))
                before = out
            self.add_module(f"layer{stage + 1}", nn.Sequential(OrderedDict((str(i), x) for i, x in enumerate(blocks))))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "digits_cnn": DigitsCnn,
    "alexnet": AlexNet,
    "alexnet_lrn": AlexNetLrn,
    "vgg16": Vgg16,
    "resnet18": lambda: ResNet((2, 2, 2, 2), False),
    "resnet34": lambda: ResNet((3, 4, 6, 3), False),
    "resnet50": lambda: ResNet((3, 4, 6, 3), True),
    "resnet101": lambda: ResNet((3, 4, 23, 3), True),
    "resnet152": lambda: ResNet((3, 8, 36, 3), True),
    "resnet_1_2_1_1": lambda: ResNet((1, 2, 1, 1), True),
}
