"""Networks as ``head(features(x))``, and their weights as one flat vector.

A model is a specification; :meth:`Model.build` makes the network. Layers carry the names the papers use (conv1, conv2,
fc1, ...), so that measures and methods can address them by pattern.
"""

from __future__ import annotations

import fnmatch
from collections import OrderedDict
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from fedlib.layers import Average, BatchNorm, Dense, Flatten, GroupNorm, MaxPoolReLU
from fedlib.spec import InputError, Spec, nearest, unknown

Norm = Literal["none", "batch", "group"]


def norm_layer(kind: Norm, channels: int) -> nn.Module:
    """The normalisation of a convolution's output; group normalisation has one group for each 16 channels, or one."""
    if kind == "batch":
        return BatchNorm(channels)
    if kind == "group":
        groups = max(1, channels // 16)
        if channels % groups:
            raise InputError(
                f"{channels} channels with group normalisation: {groups} groups of equal size are not possible "
                f"(allowed: less than 32, or a multiple of the groups, for example of 16)"
            )
        return GroupNorm(groups, channels)
    return nn.Identity()


class Network(nn.Module):
    """`body` maps images (N, C, H, W) to representations z (N, d); `head` maps z to class scores (N, classes)."""

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = Dense(width, classes)

    def features(self, x: Tensor) -> Tensor:
        """The representation z that the papers on dimensional collapse look at: the input of the last layer."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def layer(self, name: str) -> nn.Module:
        """The layer of the body with this name: one of :meth:`Layout.layers`, or one without weights as ``fc1_relu``.

        Raises :class:`InputError` for another.
        """
        layers = {name: module for name, module in self.body.named_modules() if name}
        if name not in layers:
            raise unknown("layer", name, layers)
        return layers[name]


class Model(Spec):
    """Family of network architectures."""

    family = {}

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        """A network for images of `shape` (height, width, channels), its weights drawn from torch's generator."""
        raise NotImplementedError

    def initial(self, shape: tuple[int, int, int], classes: int, rng: np.random.Generator) -> Network:
        """The same, its weights decided by `rng`; torch's generator is left as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            return self.build(shape, classes)


class CNN(Model):
    """Convolutions of one kernel size, each with normalisation, ReLU and 2x2 max-pooling, then dense ReLU layers.

    Without dense layers the representation is the average over positions of the last convolution's output.
    ``CNN(channels=(32, 64), kernel=5, dense=(512,))`` is the MNIST network of McMahan et al. 2017 (1,663,370 weights);
    S4's paper uses it for MNIST and a larger one of the same kind for CIFAR-10.
    """

    channels: tuple[PositiveInt, ...] = Field((16, 32), min_length=1)
    """Output channels of each convolution."""
    dense: tuple[PositiveInt, ...] = (64,)
    """Widths of the dense layers before the head; () for global average pooling."""
    kernel: Literal[3, 5] = 3
    """Side of the square kernels; padding keeps the image size."""
    norm: Norm = "none"
    """Normalisation after each convolution."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        height, width, inputs = shape
        if min(height, width) < 2 ** len(self.channels):
            raise InputError(f"CNN.channels = {self.channels}: images of {height}x{width} allow fewer poolings")
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for i, outputs in enumerate(self.channels, 1):
            # A bias before normalisation would be subtracted again.
            bias = self.norm == "none"
            layers[f"conv{i}"] = nn.Conv2d(inputs, outputs, self.kernel, padding=self.kernel // 2, bias=bias)
            if self.norm != "none":
                layers[f"norm{i}"] = norm_layer(self.norm, outputs)
            if i < len(self.channels) or self.dense:
                layers[f"pool{i}"] = MaxPoolReLU()
                height, width = height // 2, width // 2
            else:
                layers[f"relu{i}"] = nn.ReLU(inplace=True)
            inputs = outputs
        if self.dense:
            layers["flatten"] = Flatten()
            inputs *= height * width
        else:
            layers["average"] = Average()
        for i, outputs in enumerate(self.dense, 1):
            layers[f"fc{i}"] = Dense(inputs, outputs)
            layers[f"fc{i}_relu"] = nn.ReLU(inplace=True)
            inputs = outputs
        return Network(nn.Sequential(layers), inputs, classes)


class LeNet(Model):
    """Two 5x5 convolutions (6, 16) and two dense layers (120, 84): MOON's CIFAR-10 network (Li et al. 2021).

    Up to padding: here it keeps the image size, so that fc1 sees 8x8 positions, not 5x5.
    """

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        return CNN(channels=(6, 16), dense=(120, 84), kernel=5).build(shape, classes)


class ResNet(Model):
    """Residual network for small images: a 3x3 stem, then stages of basic blocks, each stage at half the resolution.

    ``ResNet(blocks=(1, 1, 1))`` is ResNet-8, ``(3, 3, 3)`` ResNet-20 (He et al. 2016, section 4.2);
    ``ResNet(blocks=(2, 2, 2, 2), width=64)`` is the CIFAR form of ResNet-18 that S2's paper uses with GroupNorm.
    """

    blocks: tuple[PositiveInt, ...] = Field((1, 1, 1), min_length=1)
    """Basic blocks in each stage."""
    width: int = Field(16, ge=1)
    """Channels of the first stage; each further stage has twice as many."""
    norm: Norm = "group"
    """Normalisation after each convolution."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        from torchvision.models.resnet import BasicBlock

        def norm(channels: int) -> nn.Module:
            return norm_layer(self.norm, channels)

        channels = self.width
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(shape[2], channels, 3, padding=1, bias=False),
            norm1=norm(channels),
            relu=nn.ReLU(inplace=True),
        )
        for stage, count in enumerate(self.blocks, 1):
            outputs = self.width * 2 ** (stage - 1)
            for block in range(count):
                stride = 2 if block == 0 and stage > 1 else 1
                shortcut = None
                if stride != 1 or channels != outputs:
                    shortcut = nn.Sequential(nn.Conv2d(channels, outputs, 1, stride, bias=False), norm(outputs))
                layers[f"stage{stage}_{block}"] = BasicBlock(channels, outputs, stride, shortcut, norm_layer=norm)
                channels = outputs
        layers["average"] = Average()
        network = Network(nn.Sequential(layers), channels, classes)
        for module in network.modules():  # He et al. 2015 initialisation, as the residual network papers have it
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return network


class MobileNetV2(Model):
    """MobileNetV2 with BatchNorm and strides for 32x32 images: FedDecorr's network (representation width 1280)."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        from torchvision.models import mobilenet_v2

        # Expansion, channels, blocks, stride. Stem and stage 2 keep the resolution, as in FedDecorr's CIFAR variant.
        setting = [
            [1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1],
        ]
        net = mobilenet_v2(num_classes=classes, inverted_residual_setting=setting, norm_layer=BatchNorm)
        stem = net.features[0][0]
        net.features[0][0] = nn.Conv2d(shape[2], stem.out_channels, 3, stride=1, padding=1, bias=False)
        body = nn.Sequential(OrderedDict(features=net.features, average=Average()))
        return Network(body, net.last_channel, classes)


class Linear(Model):
    """Multinomial logistic regression on pixels; its representation is the image itself."""

    def build(self, shape: tuple[int, int, int], classes: int) -> Network:
        height, width, channels = shape
        return Network(Flatten(), height * width * channels, classes)


class Layout:
    """Where each tensor of a network lies in its flat vector: parameters first, then floating-point buffers.

    Federated learning adds, scales and compares whole models, so a model is kept as one vector w of length `size` and
    the network's tensors are views of it. Convolution weights lie in channels-last order. `trained` is the number of
    parameters; w[trained:] are BatchNorm's running statistics. Integer counters are not part of w.
    """

    def __init__(self, network: nn.Module) -> None:
        self.places: OrderedDict[str, tuple[int, torch.Size]] = OrderedDict()
        offset = 0
        for name, tensor in network.named_parameters():
            self.places[name] = (offset, tensor.shape)
            offset += tensor.numel()
        self.trained = offset
        for name, tensor in network.named_buffers():
            if tensor.is_floating_point():
                self.places[name] = (offset, tensor.shape)
                offset += tensor.numel()
        self.size = offset

    def view(self, w: Tensor, name: str) -> Tensor:
        """The tensor `name` as a view of the flat vector `w`, or those of stacked vectors `w` (..., size)."""
        offset, shape = self.places[name]
        flat = w[..., offset : offset + shape.numel()]
        if len(shape) == 4:
            return flat.view(*w.shape[:-1], shape[0], shape[2], shape[3], shape[1]).movedim(-1, -3)
        return flat.view(*w.shape[:-1], *shape)

    def flatten(self, network: nn.Module) -> Tensor:
        """A new flat vector with the network's present values."""
        w = torch.empty(self.size)
        state = network.state_dict(keep_vars=False)
        for name in self.places:
            self.view(w, name).copy_(state[name])
        return w

    def attach(self, network: nn.Module, w: Tensor, g: Tensor | None = None, buffers: Tensor | None = None) -> None:
        """Make the network's parameters and buffers views of `w`, and its gradients views of `g` (length `trained`).

        The network takes the type of `w`. With `buffers` (length `size`, usually the float32 vector of which `w` is a
        bfloat16 copy) the buffers are views of that vector instead: running statistics gain about a thousandth of
        their value per step, which bfloat16 would round away. Then `w` need only hold the parameters.
        """
        for name, parameter in network.named_parameters():
            parameter.grad = None  # of the old type
            parameter.data = self.view(w, name)
            parameter.grad = None if g is None else self.view(g, name)
        for name, buffer in network.named_buffers():
            if name in self.places:
                buffer.data = self.view(w if buffers is None else buffers, name)

    def layers(self) -> list[str]:
        """Names of the layers that have trained parameters, in order, without the ``body.`` prefix."""
        names = [n for n, (offset, _) in self.places.items() if offset < self.trained]
        return list(OrderedDict.fromkeys(n.rsplit(".", 1)[0].removeprefix("body.") for n in names))

    def select(self, *patterns: str) -> Tensor:
        """A boolean mask of length `size`, true on tensors whose layer or tensor name matches a shell pattern.

        Raises :class:`InputError` when a pattern matches nothing.
        """
        mask = torch.zeros(self.size, dtype=torch.bool)
        for pattern in patterns:
            found = False
            for name, (offset, shape) in self.places.items():
                short = name.removeprefix("body.")
                if fnmatch.fnmatch(short, pattern) or fnmatch.fnmatch(short.rsplit(".", 1)[0], pattern):
                    mask[offset : offset + shape.numel()] = found = True
            if not found:
                names = self.layers()
                raise InputError(f"no layer matches {pattern!r}{nearest(pattern, names)} (layers: {', '.join(names)})")
        return mask
