import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlib.layers import BatchNorm, BitwiseMaxPoolReLU, Dense, Flatten, GroupNorm, MaxPoolReLU, first_order
from fedlib.models import CNN, Layout, LeNet, Linear, MobileNetV2, ResNet
from fedlib.spec import InputError

RESNET18 = ResNet(blocks=(2, 2, 2, 2), width=64)
RGB, TINY, GREY = (32, 32, 3), (64, 64, 3), (28, 28, 1)

# architecture, shape, width of the representation, parameters (None: no published number for this shape)
NETWORKS = [
    (CNN(channels=(32, 64), dense=(512,), kernel=5), GREY, 512, 1_663_370),  # McMahan et al. 2017, section 3
    (ResNet(blocks=(3, 3, 3)), RGB, 64, 272_474),  # He et al. 2016, table 6: 0.27 M
    (RESNET18, RGB, 512, 11_173_962),  # the common CIFAR form: 11.2 M
    (MobileNetV2(), RGB, 1280, 2_236_682),  # Sandler et al. 2018: 2.2 M without their 1000-class head
    (Linear(), GREY, 784, 7_850),
    (CNN(), RGB, 64, None),
    (CNN(channels=(8, 16, 32), dense=(), norm="group"), RGB, 32, None),
    (CNN(channels=(32, 64), dense=(128,), norm="batch"), TINY, 128, None),
    (LeNet(), RGB, 84, None),
    (LeNet(), GREY, 84, None),
    (ResNet(), TINY, 64, None),
    (ResNet(blocks=(1, 1, 1), norm="batch"), GREY, 64, None),
    (ResNet(blocks=(1, 1), width=8, norm="none"), RGB, 16, None),
    (MobileNetV2(), TINY, 1280, None),
]
networks = pytest.mark.parametrize(("model", "shape", "width", "count"), NETWORKS)


def images(n: int, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, *shape, generator=generator).to(dtype).permute(0, 3, 1, 2)


def channels_last(*shape: int, dtype: torch.dtype = torch.float32, values: int = 0) -> torch.Tensor:
    """Normal values, or as many different integers around 0 (then with many ties)."""
    generator = torch.Generator().manual_seed(sum(shape))
    integers = torch.randint(-(values // 2), values // 2 + 1, shape, generator=generator) if values else None
    x = torch.randn(shape, generator=generator) if integers is None else integers
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


@networks
def test_network_survives_the_flat_vector(model, shape, width, count) -> None:
    torch.manual_seed(0)
    first, second = (model.build(shape, 10).to(memory_format=torch.channels_last) for _ in range(2))
    layout = Layout(first)
    w, g = layout.flatten(first), torch.zeros(layout.trained)
    layout.attach(second, w, g)
    x = images(2, shape)

    assert count is None or layout.trained == count
    assert layout.trained == sum(p.numel() for p in first.parameters())
    assert torch.equal(layout.flatten(second), w)
    outputs = second(x)
    assert torch.equal(first(x), outputs)
    assert torch.equal(layout.flatten(first), w), "running statistics are views of w"

    outputs.square().sum().backward()
    first(x).square().sum().backward()
    for name, parameter in first.named_parameters():
        torch.testing.assert_close(layout.view(g, name), parameter.grad)
    z = first.features(x)
    assert z.shape == (2, width)
    assert first.head(z).shape == (2, 10)


@networks
def test_images_stay_channels_last(model, shape, width, count) -> None:
    network = model.build(shape, 10)
    layout = Layout(network)
    layout.attach(network, layout.flatten(network))
    seen = []

    def check(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if output.dim() == 4:
            seen.append(module)
            assert output.is_contiguous(memory_format=torch.channels_last), module

    for module in network.modules():
        module.register_forward_hook(check)
        if isinstance(module, nn.Conv2d):
            assert module.weight.is_contiguous(memory_format=torch.channels_last)
    network(images(2, shape))
    assert seen or isinstance(model, Linear)


@pytest.mark.parametrize("model", [CNN(dense=(), norm="batch"), ResNet(norm="batch"), MobileNetV2()], ids=repr)
def test_batch_of_one_small_image_trains(model) -> None:
    network = model.build((4, 4, 3), 10)
    network(images(1, (4, 4, 3))).sum().backward()
    assert all(p.grad.isfinite().all() for p in network.parameters())


@pytest.mark.parametrize("model", [CNN(norm="batch"), CNN(norm="group"), ResNet(norm="batch")], ids=repr)
def test_bfloat16_copy_agrees_and_keeps_statistics_in_the_master(model) -> None:
    torch.manual_seed(0)
    network, copy = model.build(RGB, 10), model.build(RGB, 10)
    layout = Layout(network)
    w = layout.flatten(network)
    master = w.clone()
    layout.attach(network, w)
    small, g = master[: layout.trained].bfloat16(), torch.zeros(layout.trained, dtype=torch.bfloat16)
    layout.attach(copy, small, g, buffers=master)

    for n in (8, 9, 10):
        expected, found = network(images(n, RGB)), copy(images(n, RGB, torch.bfloat16))
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.float(), expected, rtol=0.05, atol=0.05)
    found.float().square().sum().backward()
    assert g.count_nonzero() > 0.5 * layout.trained
    assert torch.equal(small, w[: layout.trained].bfloat16())
    torch.testing.assert_close(master, w, rtol=0.02, atol=0.01)
    moved = master[layout.trained :]
    assert moved.numel() == 0 or not torch.equal(moved, moved.bfloat16().float())


def test_layers_and_select() -> None:
    layout = Layout(CNN(channels=(4, 8), dense=(16,), norm="batch").build(GREY, 10))
    assert layout.layers() == ["conv1", "norm1", "conv2", "norm2", "fc1", "head"]
    assert layout.select("conv*").sum() == 4 * 9 + 8 * 4 * 9
    assert layout.select("norm1").sum() == 4 * 4, "weight, bias and the two running statistics"
    assert layout.select("*.running_*").sum() == layout.size - layout.trained == 2 * (4 + 8)
    assert layout.select("head.bias", "fc1").sum() == 10 + 16 * (8 * 7 * 7) + 16
    assert layout.select("*").all()
    with pytest.raises(InputError, match=r"'cnov1'; did you mean 'conv1'"):
        layout.select("conv*", "cnov1")


def test_too_many_poolings() -> None:
    with pytest.raises(InputError, match="28x28"):
        CNN(channels=(4,) * 5).build(GREY, 10)


def test_widths_that_no_network_has() -> None:
    for fields in ({"channels": (-1,)}, {"channels": (0,)}, {"dense": (0,)}):
        with pytest.raises(InputError, match=r"greater than 0|at least 1|> 0"):
            CNN(**fields)
    with pytest.raises(InputError, match="50 channels with group normalisation: 3 groups"):
        CNN(channels=(50,), norm="group").build(GREY, 10)
    assert CNN(channels=(40,), norm="group").build(GREY, 10).layer("norm1").num_groups == 2


@pytest.mark.parametrize("shape", [(3, 5, 8, 6), (2, 32, 7, 6), (2, 3, 6, 5), (1, 1, 3, 3), (4, 64, 2, 2)])
@pytest.mark.parametrize("values", [0, 3, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("pool", [MaxPoolReLU(), BitwiseMaxPoolReLU.apply])
def test_pooling_is_pytorchs(shape, values, dtype, pool) -> None:
    x = channels_last(*shape, dtype=dtype, values=values).requires_grad_()
    expected = nn.Sequential(nn.MaxPool2d(2), nn.ReLU())(x)
    found = pool(x)
    assert torch.equal(found, expected)
    with torch.no_grad():
        evaluated = pool(x)
    assert torch.equal(evaluated, expected)
    assert all(y.is_contiguous(memory_format=torch.channels_last) for y in (found, evaluated))
    grads = channels_last(*found.shape, dtype=dtype), torch.ones((), dtype=dtype).expand(found.shape)
    for grad in grads:
        left, right = (torch.autograd.grad(y, x, grad, retain_graph=True)[0] for y in (found, expected))
        assert torch.equal(left, right)


def test_pooling_takes_infinities_and_any_memory_order() -> None:
    x = torch.tensor([1.0, float("inf"), -float("inf"), 2.0], dtype=torch.bfloat16).view(1, 1, 2, 2).requires_grad_()
    pool = MaxPoolReLU()
    first_order(pool)
    y = pool(x)
    (grad,) = torch.autograd.grad(y, x, torch.full_like(y, float("inf")))
    assert y.item() == float("inf")
    assert grad.flatten().tolist() == [0, float("inf"), 0, 0]
    x = torch.randn(2, 3, 4, 6, dtype=torch.bfloat16)
    assert torch.equal(pool(x), F.max_pool2d(x, 2).relu())


def test_an_evaluation_passes_on_what_is_no_number() -> None:
    x = torch.randn(2, 3, 4, 6)
    x[0, 1, 0, 0] = torch.nan
    with torch.inference_mode():
        y = MaxPoolReLU()(x)
    assert y.isnan().sum() == 1
    assert y[0, 1, 0, 0].isnan()


@pytest.mark.parametrize("count", [1, 7, 32])
def test_a_large_dense_layer_is_pytorchs(count) -> None:
    torch.manual_seed(0)
    layer, x, grad = Dense(1024, 64), torch.randn(count, 1024, requires_grad=True), torch.randn(count, 64)
    taken = []
    for fast in (False, True):
        first_order(layer, fast)
        y = layer(x)
        assert ("OneDNN" in y.grad_fn.name()) is fast
        taken.append((y.detach(), *torch.autograd.grad(y, (x, layer.weight, layer.bias), grad)))
    for ours, torchs in zip(*taken, strict=True):
        # Sums of up to 1024 products of size 1, taken in another order.
        torch.testing.assert_close(ours, torchs, rtol=1e-5, atol=1e-5)
        assert ours.shape == torchs.shape


def test_small_layers_and_other_number_formats_stay_with_pytorch() -> None:
    small, low = Dense(128, 10), Dense(1024, 64).bfloat16()
    for layer, x in ((small, torch.randn(4, 128)), (low, torch.randn(4, 1024, dtype=torch.bfloat16))):
        first_order(layer)
        assert "OneDNN" not in layer(x).grad_fn.name()


def test_flatten_is_a_view_in_channels_last_order() -> None:
    x = channels_last(2, 3, 4, 5)
    z = Flatten()(x)
    assert z.data_ptr() == x.data_ptr()
    assert torch.equal(z[1, 3:6], x[1, :, 0, 1])


def test_group_norm() -> None:
    ours, torchs = GroupNorm(4, 32), nn.GroupNorm(4, 32)
    assert list(ours.state_dict()) == ["weight", "bias"]
    for module in (ours, torchs):
        torch.manual_seed(0)
        nn.init.uniform_(module.weight, 0.5, 2)
        nn.init.normal_(module.bias)
    x = channels_last(3, 32, 6, 5).requires_grad_()
    assert torch.equal(ours(x), torchs(x))
    double = channels_last(2, 32, 2, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(GroupNorm(2, 32).double(), double)


def test_group_norm_bfloat16_is_as_exact_as_its_inputs() -> None:
    x = (channels_last(8, 64, 16, 16) * 2 + 1).bfloat16()
    grad = channels_last(8, 64, 16, 16).bfloat16()
    results = []
    for dtype in (torch.bfloat16, torch.float64):
        leaf = x.to(dtype).requires_grad_()
        y = GroupNorm(4, 64).to(dtype)(leaf)
        results.append((y, *torch.autograd.grad(y, leaf, grad.to(dtype))))
    for found, exact in zip(*results, strict=True):
        assert found.dtype == torch.bfloat16
        # Rounding the result alone costs 2**-9 / sqrt(3) at most; statistics in bfloat16 would give 0.0024.
        assert (found - exact).norm() < 0.0018 * exact.norm()


@pytest.mark.parametrize("shape", [(4, 8, 3, 3), (1, 8, 2, 1), (2, 8, 1, 1)])
def test_batch_norm_is_pytorchs(shape) -> None:
    ours, torchs = BatchNorm(8), nn.BatchNorm2d(8)
    x = channels_last(*shape)
    for _ in range(2):
        assert torch.equal(ours(x), torchs(x))
    assert torch.equal(ours.running_mean, torchs.running_mean)
    assert torch.equal(ours.running_var, torchs.running_var)
    assert ours.num_batches_tracked == 0
    assert torch.equal(ours.eval()(x), torchs.eval()(x))


def test_batch_norm_of_one_value_uses_the_running_statistics() -> None:
    norm = BatchNorm(2)
    norm.running_mean.copy_(torch.tensor([1.0, 2.0]))
    norm.running_var.copy_(torch.tensor([4.0, 9.0]))
    x = torch.tensor([3.0, 8.0]).view(1, 2, 1, 1)
    torch.testing.assert_close(norm(x).flatten(), torch.tensor([1.0, 2.0]))
    assert norm.running_mean.tolist() == [1, 2]
    assert norm.running_var.tolist() == [4, 9]
