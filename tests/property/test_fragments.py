from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol.errors import UserError
from protocol.fragments import BLOCK, build_layout
from protocol.project import TensorSpec

modest = settings(max_examples=60, deadline=None)

PATHS = ("embed", "layers.0.a", "layers.0.b", "layers.1.a", "layers.12.a", "norm", "head")


@st.composite
def models(draw):
    shapes = draw(
        st.lists(st.lists(st.integers(1, 60), max_size=3).map(tuple), min_size=1, max_size=25)
    )
    paths = draw(st.lists(st.sampled_from(PATHS), min_size=len(shapes), max_size=len(shapes)))
    rules = draw(
        st.lists(st.sampled_from(["rda", "mean"]), min_size=len(shapes), max_size=len(shapes))
    )
    return [
        TensorSpec(f"{path}.w{i}", shape, rule)
        for i, (path, shape, rule) in enumerate(zip(paths, shapes, rules, strict=True))
    ]


MODELS = models()
WHOLE = st.sampled_from(["balanced", "layer", "tensor"])
STRATEGIES = st.sampled_from(["balanced", "layer", "tensor", "rows"])
COUNTS = st.integers(1, 8)


def layout_of(tensors, strategy, count):
    try:
        return build_layout(tensors, strategy, count)
    except UserError:
        assume(False)


@given(MODELS, WHOLE, COUNTS)
@modest
def test_every_tensor_lies_in_exactly_one_fragment_and_none_is_empty(tensors, strategy, count):
    layout = layout_of(tensors, strategy, count)
    placed = [span.name for fragment in layout.fragments for span in fragment.spans]
    assert sorted(placed) == sorted(tensor.name for tensor in tensors)
    assert len(layout.fragments) == count
    assert all(fragment.spans for fragment in layout.fragments)
    assert layout.parameters == sum(tensor.numel for tensor in tensors)


@given(MODELS, STRATEGIES, COUNTS)
@modest
def test_spans_are_whole_blocks_back_to_back_in_model_order(tensors, strategy, count):
    layout = layout_of(tensors, strategy, count)
    order = {tensor.name: i for i, tensor in enumerate(tensors)}
    for index, fragment in enumerate(layout.fragments):
        assert fragment.index == index
        end = 0
        for span in fragment.spans:
            assert span.offset == end
            assert 0 <= span.padded - span.numel < BLOCK
            end += span.padded
        assert fragment.numel == end
        positions = [(order[span.name], span.start) for span in fragment.spans]
        assert positions == sorted(positions)


@given(MODELS, COUNTS)
@modest
def test_balanced_fragments_stay_under_the_bound_of_greedy_partitioning(tensors, count):
    layout = layout_of(tensors, "balanced", count)
    total = sum(fragment.numel for fragment in layout.fragments)
    largest = max(span.padded for fragment in layout.fragments for span in fragment.spans)
    # The fullest fragment was the emptiest before its last tensor came.
    assert max(f.numel for f in layout.fragments) <= total / count + largest * (1 - 1 / count)


@given(MODELS, STRATEGIES, COUNTS)
@modest
def test_every_element_lies_in_one_span_and_parts_are_whole_rows(tensors, strategy, count):
    layout = layout_of(tensors, strategy, count)
    spans = [span for fragment in layout.fragments for span in fragment.spans]
    assert all(fragment.spans for fragment in layout.fragments)
    for tensor in tensors:
        here = sorted((one.start, one.end) for one in spans if one.name == tensor.name)
        assert [start for start, _ in here] == [0, *(end for _, end in here[:-1])]
        assert here[-1][1] == tensor.numel
        if len(here) > 1:
            row = tensor.numel // tensor.shape[0]
            assert all(start % row == 0 for start, _ in here)
    for fragment in layout.fragments:
        for one, after in pairwise(fragment.spans):
            assert (one.name, one.end) != (after.name, after.start), "rows that meet are one span"


@given(MODELS, COUNTS)
@modest
def test_rows_are_no_worse_than_balanced_and_the_same_where_that_is_good(tensors, count):
    whole, cut = layout_of(tensors, "balanced", count), layout_of(tensors, "rows", count)
    largest, mean = max(one.numel for one in whole.fragments), _mean(whole)
    assert max(one.numel for one in cut.fragments) <= largest
    if largest <= 1.2 * mean:
        assert cut == whole


@given(
    st.lists(st.tuples(st.integers(2000, 9000), st.integers(1, 64)), min_size=1, max_size=12),
    st.integers(1, 12),
)
@modest
def test_tables_of_many_rows_never_make_a_fragment_much_larger_than_the_mean(shapes, count):
    tensors = [TensorSpec(f"t{i}", shape, "rda") for i, shape in enumerate(shapes)]
    layout = layout_of(tensors, "rows", count)
    # Blocks of padding come on top: one for each span.
    allowed = 1.2 * _mean(layout) + BLOCK * len(max(layout.fragments, key=_numel).spans)
    assert max(map(_numel, layout.fragments)) <= allowed


def _mean(layout):
    return sum(map(_numel, layout.fragments)) / len(layout.fragments)


def _numel(fragment):
    return fragment.numel


@given(MODELS, COUNTS)
@modest
def test_tensor_fragments_are_runs_of_the_model(tensors, count):
    layout = layout_of(tensors, "tensor", count)
    placed = [span.name for fragment in layout.fragments for span in fragment.spans]
    assert placed == [tensor.name for tensor in tensors]


@given(MODELS, COUNTS)
@modest
def test_no_layer_is_split(tensors, count):
    layout = layout_of(tensors, "layer", count)
    homes = {}
    for fragment in layout.fragments:
        for span in fragment.spans:
            if span.name.startswith("layers."):
                homes.setdefault(span.name.split(".")[1], set()).add(fragment.index)
    assert all(len(home) == 1 for home in homes.values())


@given(MODELS)
@modest
def test_as_many_fragments_as_tensors_is_the_most_there_can_be(tensors):
    layout = build_layout(tensors, "tensor", len(tensors))
    assert [len(fragment.spans) for fragment in layout.fragments] == [1] * len(tensors)
    for strategy in ("tensor", "balanced"):
        with pytest.raises(UserError):
            build_layout(tensors, strategy, len(tensors) + 1)


@given(MODELS, STRATEGIES, COUNTS, st.randoms(use_true_random=False))
@modest
def test_another_order_of_tensors_is_another_layout(tensors, strategy, count, shuffler):
    shuffled = list(tensors)
    shuffler.shuffle(shuffled)
    one, other = layout_of(tensors, strategy, count), layout_of(shuffled, strategy, count)
    assert (one.digest == other.digest) == (one.fragments == other.fragments)
