"""The few layers that PyTorch lacks, or has in a form that is slow or unsafe here. All keep images channels-last."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Flatten(nn.Module):
    """(N, C, H, W) to (N, H*W*C), channels varying fastest: a view of channels-last images, where
    :class:`torch.nn.Flatten` copies and hands back gradients in an order that slows every layer before it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


class Average(nn.Module):
    """The mean over positions: (N, C, H, W) to (N, C)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation (Ioffe and Szegedy 2015) whose statistics keep their own precision, for batches of any size.

    The running statistics (momentum 0.1) may be float32 in a bfloat16 network, where rounding would lose their small
    updates; weight and bias are brought to that precision for the computation. One value per channel (a last batch of
    one image at 1x1 positions) has no variance: such a batch is normalised by the running statistics and leaves them
    as they are, where PyTorch raises. ``num_batches_tracked`` is not used and stays 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        training = self.training and x.numel() > x.shape[1]
        weight, bias = self.weight.to(mean.dtype), self.bias.to(mean.dtype)
        return F.batch_norm(x, mean, var, weight, bias, training, self.momentum, self.eps)


class GroupNorm(nn.GroupNorm):
    """Group normalisation (Wu and He 2018); in a bfloat16 network its statistics are float32, for the backward too."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if x.dtype == torch.bfloat16:
            weight, bias = weight.float(), bias.float()
            return F.group_norm(x, self.num_groups, weight, bias, self.eps).to(x.dtype)  # under vmap it is float32
        return F.group_norm(x, self.num_groups, weight, bias, self.eps)


class FirstOrder(nn.Module):
    """A layer with a faster form for training on CPUs, which can be differentiated once and not by `torch.func`."""

    first_order = False
    """Whether to use that form."""


def first_order(network: nn.Module, on: bool = True) -> None:
    """Have all layers of a network use their faster forms, or their ordinary ones again."""
    for module in network.modules():
        if isinstance(module, FirstOrder):
            module.first_order = on


class Dense(nn.Linear, FirstOrder):
    """:class:`torch.nn.Linear`; in float32 its faster form has large layers multiplied by oneDNN.

    PyTorch asks MKL for them, which is the slower of the two on AMD processors.
    """

    LARGE = 1 << 16
    """Weights from which oneDNN is faster."""

    def forward(self, x: Tensor) -> Tensor:
        if self.first_order and self.weight.numel() >= self.LARGE and x.dtype == torch.float32 and _onednn(x):
            return OneDNNLinear.apply(x, self.weight, self.bias)
        return super().forward(x)


def _onednn(x: Tensor) -> bool:
    return x.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (n, d) times the transposed weight (k, d), plus a bias (k,)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class OneDNNLinear(torch.autograd.Function):
    """The three products of :class:`Dense`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return _product(grad, weight.t()), _product(grad.t(), x.t()), grad.sum(0)


class MaxPoolReLU(FirstOrder):
    """``relu(max_pool2d(x, 2))`` with PyTorch's gradients: the first of a window's equal maxima gets it.

    PyTorch's bfloat16 kernels work value by value on CPUs, for which there is a faster form. Its pooling also notes
    where each maximum stood, which an evaluation does without.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled() and x.device.type == "cpu":
            y = _windows(x.permute(0, 2, 3, 1))
            return torch.maximum(*_pairs(torch.maximum(*_pairs(y, 1)), 2)).relu_().permute(0, 3, 1, 2)
        if self.first_order and x.dtype == torch.bfloat16 and x.device.type == "cpu":
            return BitwiseMaxPoolReLU.apply(x)
        return F.max_pool2d(x, 2).relu_()


class BitwiseMaxPoolReLU(torch.autograd.Function):
    """:class:`MaxPoolReLU` on the bit patterns as integers.

    Non-negative numbers are ordered as their bit patterns are, and negative ones the ReLU makes zero whatever their
    order. A NaN therefore counts by its sign bit.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        n, channels, height, width = x.shape
        out = torch.empty((n, channels, height // 2, width // 2), dtype=x.dtype, device=x.device,
                          memory_format=torch.channels_last)
        pairs, bits = torch.maximum(*_pairs(_windows(_bits(x)), 2)), _bits(out)
        torch.maximum(*_pairs(pairs, 1), out=bits).clamp_min_(0)
        ctx.save_for_backward(x, pairs, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        x, pairs, out = ctx.saved_tensors
        odd = x.shape[2] % 2 or x.shape[3] % 2
        result = torch.zeros_like(x) if odd else torch.empty_like(x)
        through = torch.gt(_bits(out), 0, out=torch.empty_like(_bits(out))).mul_(_bits(grad))
        through = _route(through, pairs, torch.empty_like(pairs), dim=1)
        _route(through, _windows(_bits(x)), _windows(_bits(result)), dim=2)
        return result


def _route(grad: Tensor, x: Tensor, out: Tensor, dim: int) -> Tensor:
    """Gradient of pairwise maxima along `dim` of `x` into `out`: all to the second if greater, else to the first."""
    first, second = _pairs(out, dim)
    torch.lt(*_pairs(x, dim), out=second).mul_(grad)  # grad * 1 or grad * 0, exact on the bits
    torch.sub(grad, second, out=first)
    return out


def _bits(x: Tensor) -> Tensor:
    """The bit patterns of `x` as (N, H, W, C) integers, without copying."""
    return x.permute(0, 2, 3, 1).view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _windows(x: Tensor) -> Tensor:
    """The part of `x` (N, H, W, C) that 2 x 2 windows cover: without the last row and column where they are odd."""
    return x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]


def _pairs(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return x.unflatten(dim, (-1, 2)).unbind(dim + 1)
