"""Profiles of networks, and networks that wait instead of computing; with a clock of our own."""

import dataclasses
import functools
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.emulated import STRAGGLERS, EmulatedNetwork, Pace, Stragglers

from sparkdl_comm.errors import InputError
from sparkdl_comm.networks import LeNet5
from sparkdl_comm.sim.profile import PROFILES, Layer, Profile
from sparkdl_comm.space.flat import FlatModel

TINY = Profile(
    title="tiny",
    rows=4,
    source="made up",
    layers=(
        Layer("block.first", {"weight": [3, 2], "bias": [3]}, 1.0, 2.0),
        Layer("second", {"weight": [5]}, 0.5, 1.0),
        Layer("third", {"scale": [1]}, 0.25, 0.5),
    ),
)


class Time:
    """A clock that only moves when someone sleeps, and then by `late` seconds too much."""

    def __init__(self, late: float = 0.0) -> None:
        self.now, self.late = 100.0, late
        self.sleeps: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds + self.late


def network(time: Time, **options: Any) -> EmulatedNetwork:
    return EmulatedNetwork(TINY, **{"outputs": 3, **options}, clock=time.clock, sleep=time.sleep)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet5", 3_274_634),
        ("alexnet", 61_100_840),
        ("googlenet", 6_624_904),
        ("inception_v3", 27_161_264),
        ("resnet50", 25_557_032),
        ("resnet152", 60_192_808),
        ("vgg19", 143_667_240),
        ("vgg19_22k", 143_667_240 + 4097 * (21_841 - 1_000)),
        ("bert_base", 109_482_240),
    ],
)
def test_shipping_profiles_have_the_published_sizes(name: str, parameters: int) -> None:
    profile = Profile.load(name)
    assert profile.parameters == parameters
    assert profile.source
    assert all(layer.forward > 0 and layer.backward > 0 for layer in profile.layers)


def test_every_shipped_profile_reads_and_writes_itself() -> None:
    for path in PROFILES.glob("*.json"):
        assert Profile.read(path).to_json() == path.read_text()


def test_a_scaled_profile_keeps_its_layers_and_their_proportions(tmp_path: Path) -> None:
    scaled = TINY.scaled(parameters=0.4, seconds=3.0)
    assert [layer.name for layer in scaled.layers] == [layer.name for layer in TINY.layers]
    assert [layer.parameters for layer in scaled.layers] == [4, 2, 1], "none is without parameters"
    assert [(layer.forward, layer.backward) for layer in scaled.layers] == [(3.0, 6.0), (1.5, 3.0), (0.75, 1.5)]
    (tmp_path / "scaled.json").write_text(scaled.to_json())
    assert Profile.read(tmp_path / "scaled.json") == scaled


def test_lenet_has_the_shapes_of_the_real_one() -> None:
    shapes = [tuple(shape) for layer in Profile.load("lenet5").layers for shape in layer.shapes.values()]
    assert shapes == [tuple(parameter.shape) for parameter in LeNet5().parameters()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": []}, "needs layers"),
        ({"layers": [{"name": "a", "shapes": {"w": [0]}, "forward": 1, "backward": 1}]}, "layer a: shapes"),
        ({"layers": [{"name": "a", "shapes": {"w": [2]}, "forward": -1, "backward": 1}]}, "layer a: seconds"),
        ({"layers": [{"name": "a", "shapes": {"w": [2]}, "forward": 1, "backward": 1}] * 2}, "unique names"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_profiles(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**json.loads(TINY.to_json()), **change}))
    with pytest.raises(InputError, match=message) as caught:
        Profile.read(path)
    assert "bad.json" in str(caught.value)


def test_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="resnet50"):
        EmulatedNetwork("resnet49")


def test_waits_come_in_the_order_of_layers_and_back() -> None:
    time = Time()
    net = network(time, scale=2.0)
    loss = net(torch.ones(4, 6)).square().sum()
    assert time.sleeps == [2.0, 1.0, 0.5]
    loss.backward()
    assert time.sleeps == [2.0, 1.0, 0.5, 1.0, 2.0, 4.0]


def test_a_wait_that_ends_late_shortens_the_next() -> None:
    time = Time(late=0.125)
    network(time)(torch.ones(4, 6)).sum()
    assert time.now - 100.0 == pytest.approx(1.75 + 0.125)  # three waits, late once, not three times


def test_work_counts_as_part_of_the_wait() -> None:
    time = Time()
    pace = Pace(time.clock, time.sleep)
    with pace.lasting(1.0):
        time.now += 0.75
    assert time.sleeps == [0.25]
    with pace.lasting(1.0):
        time.now += 1.5
    assert (time.sleeps, pace.late) == ([0.25], 0.5)


def test_gradients_are_as_stated() -> None:
    net = network(Time())
    x = torch.arange(24.0).view(4, 6)
    net(x)[:, 0].sum().backward()  # the gradient of the last layer's output is 1 for each of the 4 rows
    for index, layer in enumerate(net.layers.values()):
        for parameter in layer.parameters():
            assert parameter.grad is not None
            largest = 4 / (index + 1)
            expected = torch.linspace(-largest, largest, parameter.numel()).view(parameter.shape)
            assert torch.equal(parameter.grad, expected)


def test_gradients_of_ranks_add_up_to_those_of_the_whole_batch() -> None:
    torch.manual_seed(2)
    x, y = torch.rand(8, 6), torch.tensor([0, 1, 2, 0, 1, 1, 2, 2])

    def gradients(rows: slice) -> torch.Tensor:
        net = network(Time())
        torch.nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="sum").backward()
        return torch.cat([p.grad.view(-1) for p in net.parameters() if p.grad is not None])

    whole = gradients(slice(0, 8))
    assert whole.abs().max() > 0
    assert torch.allclose(gradients(slice(0, 3)) + gradients(slice(3, 8)), whole, atol=1e-6)


def test_frozen_parameters_get_no_gradient() -> None:
    net = network(Time())
    frozen = next(net.parameters())
    frozen.requires_grad_(False)
    net(torch.ones(4, 6)).square().sum().backward()
    assert frozen.grad is None
    assert all(parameter.grad is not None for parameter in net.parameters() if parameter is not frozen)


def test_flat_layout_follows_the_profile() -> None:
    flat = FlatModel(network(Time()))
    assert [layer.name for layer in flat.layers] == ["layers.0_block_first", "layers.1_second", "layers.2_third"]
    assert [layer.count for layer in flat.layers] == [9, 5, 1]
    assert flat.fingerprint() == FlatModel(network(Time())).fingerprint()


def test_eval_does_not_wait() -> None:
    time = Time()
    assert network(time).eval()(torch.ones(4, 6)).shape == (4, 3)
    assert not time.sleeps


def test_stragglers_are_seeded_and_as_frequent_as_stated() -> None:
    def factors(seed: int) -> list[float]:
        generator = torch.Generator().manual_seed(seed)
        return [STRAGGLERS["C2"].draw(generator) for _ in range(4000)]

    assert factors(1) == factors(1) != factors(2)
    assert set(factors(1)) == {1.0, 4.0}
    assert factors(1).count(4.0) / 4000 == pytest.approx(0.1, abs=0.02)


def test_a_straggler_waits_longer_both_ways() -> None:
    time = Time()
    network(time, stragglers=Stragglers(chance=1.0, factor=3.0))(torch.ones(4, 6)).square().sum().backward()
    assert sum(time.sleeps) == pytest.approx(3 * TINY.seconds)


@pytest.mark.parametrize("options", [{"outputs": 0}, {"scale": -1.0}, {"scale": float("nan")}, {"stragglers": "C9"}])
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        network(Time(), **options)


def test_a_factory_ships_to_executors() -> None:
    factory = functools.partial(EmulatedNetwork, dataclasses.replace(TINY), stragglers="C1")
    made = pickle.loads(pickle.dumps(factory))()  # noqa: S301 - our own bytes
    assert sum(parameter.numel() for parameter in made.parameters()) == TINY.parameters
