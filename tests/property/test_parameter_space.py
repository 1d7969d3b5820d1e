"""Where parameters lie, from names and shapes alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparkdl_comm.space.flat import FlatModel
from sparkdl_comm.space.parameter_space import EARLY_SHARE, ParameterSpace, count_early_buckets, group_into_buckets

SHAPES = st.dictionaries(
    st.tuples(st.sampled_from(["", "a.", "a.b.", "c."]), st.sampled_from(["weight", "bias", "scale"])),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    max_size=12,
).map(lambda drawn: {layer + name: shape for (layer, name), shape in sorted(drawn.items())})


@given(SHAPES)
def test_parameters_lie_one_after_another_and_layers_are_their_owners(shapes):
    space = ParameterSpace(shapes)
    there = {name: shape for name, shape in shapes.items() if 0 not in shape}
    assert {entry.name: entry.shape for entry in space.entries} == there
    flat = torch.arange(float(space.count))
    views = space.views(flat)
    assert [tuple(view.shape) for view in views] == list(there.values())
    assert torch.equal(torch.cat([torch.empty(0), *(view.flatten() for view in views)]), flat)
    owners = [name.rpartition(".")[0] for name in there]
    assert [space.layers[layer].name for layer in space.layer_of_each] == owners
    assert [layer.name for layer in space.layers] == sorted(set(owners))
    for number, layer in enumerate(space.layers):
        members = [view for view, of in zip(views, space.layer_of_each, strict=True) if of == number]
        stretch = space.stretch(range(number, number + 1))
        assert (layer.start, layer.count) == (stretch.start, sum(view.numel() for view in members))
        assert torch.equal(flat[stretch], torch.cat([view.flatten() for view in members]))


@given(SHAPES, st.data())
def test_a_range_is_cut_where_parameters_end(shapes, data):
    space = ParameterSpace(shapes)
    start = data.draw(st.integers(0, space.count))
    count = data.draw(st.integers(0, space.count - start))
    pieces = space.cut(start, count)
    assert [i for piece in pieces for i in range(piece.start, piece.start + piece.count)] == [
        *range(start, start + count)
    ]
    for piece in pieces:
        entry = space.entries[piece.number]
        assert entry.start <= piece.start < piece.start + piece.count <= entry.start + entry.count
    assert len({piece.number for piece in pieces}) == len(pieces)
    values = torch.zeros(count)
    if count:
        values[data.draw(st.integers(0, count - 1))] = torch.inf
        [name] = space.not_finite(start, values)
        assert name in {space.entries[piece.number].name for piece in pieces}
    assert space.not_finite(start, torch.zeros(count)) == set()


@given(SHAPES, st.integers(1, 100))
def test_buckets_are_the_shortest_runs_of_parameters_that_have_enough_from_the_end_on(shapes, least):
    space = ParameterSpace(shapes)
    buckets = space.buckets(least)
    assert [place for start, stop in buckets[::-1] for place in range(start, stop)] == [*range(space.count)]
    ends = {entry.start: entry.count for entry in space.entries}
    for start, stop in buckets:
        assert start in ends
        # The parameter that was added last was wanted.
        assert stop - start - ends[start] < least
    assert all(stop - start >= least for start, stop in buckets[:-1])


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 30), st.none() | st.integers(1, 30))
def test_items_are_in_one_bucket_each_in_their_order(sizes, least, first):
    buckets = group_into_buckets(sizes, least, first)
    assert [item for bucket in buckets for item in bucket] == [*range(len(sizes))]
    for number, bucket in enumerate(buckets):
        wanted = first if number == 0 and first is not None else least
        assert sum(sizes[bucket.start : bucket.stop - 1]) < wanted
        assert bucket is buckets[-1] or sum(sizes[bucket.start : bucket.stop]) >= wanted


@given(st.lists(st.integers(1, 9), max_size=20))
def test_what_travels_ahead_is_of_the_last_part_and_no_bucket_more_would_be(sizes):
    ahead = count_early_buckets(sizes)
    assert sum(sizes[:ahead]) <= EARLY_SHARE * sum(sizes)
    assert ahead == len(sizes) or sum(sizes[: ahead + 1]) > EARLY_SHARE * sum(sizes)


def test_a_modules_space_is_that_of_its_names_and_shapes():
    module = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
    module.register_parameter("own", nn.Parameter(torch.zeros(3)))
    names = [name for name, _ in module.named_parameters()]
    model = FlatModel(module)
    space = ParameterSpace({name: parameter.shape for name, parameter in module.named_parameters()})
    assert (space.entries, space.layers, space.count) == (model.entries, model.layers, model.count)
    assert [entry.name for entry in model.entries] == names
    assert [id(parameter) for parameter in model.parameters] == [id(parameter) for parameter in module.parameters()]
