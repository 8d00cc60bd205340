import dataclasses

import pytest

from protocol.errors import UserError
from protocol.fragments import BLOCK, build_layout
from protocol.project import TensorSpec

WHOLE = ("balanced", "layer", "tensor")
STRATEGIES = (*WHOLE, "rows")


def tensors(**sizes):
    return [TensorSpec(name, (size,), "rda") for name, size in sizes.items()]


def names(layout):
    return [[span.name for span in fragment.spans] for fragment in layout.fragments]


MODEL = [
    TensorSpec("model.embed.weight", (300, 8), "mean"),
    TensorSpec("model.layers.0.attn.weight", (40, 40), "rda"),
    TensorSpec("model.layers.0.mlp.experts.1.weight", (40, 80), "rda"),
    TensorSpec("model.layers.1.attn.weight", (40, 40), "rda"),
    TensorSpec("model.layers.1.mlp.experts.0.weight", (40, 80), "rda"),
    TensorSpec("model.layers.10.attn.weight", (40, 40), "rda"),
    TensorSpec("model.norm.weight", (40,), "rda"),
    TensorSpec("head.weight", (300, 8), "mean"),
]


def test_a_tensor_is_padded_to_whole_blocks_and_the_next_begins_after_it():
    layout = build_layout(tensors(a=1, b=128, c=129), "tensor", 1)
    (fragment,) = layout.fragments
    assert [(s.offset, s.numel, s.padded) for s in fragment.spans] == [
        (0, 1, 128),
        (128, 128, 128),
        (256, 129, 256),
    ]
    assert fragment.numel == 512
    assert layout.parameters == 258


def test_a_scalar_takes_one_block():
    layout = build_layout([TensorSpec("gain", (), "rda")], "balanced", 1)
    assert layout.fragments[0].numel == BLOCK
    assert layout.parameters == 1


def test_balanced_puts_the_largest_first_into_the_smallest_fragment():
    layout = build_layout(tensors(a=512, b=2048, c=1024, d=1024, e=512), "balanced", 2)
    assert names(layout) == [["a", "b"], ["c", "d", "e"]]
    assert [fragment.numel for fragment in layout.fragments] == [2560, 2560]


LLAMA_1B = [
    TensorSpec("embed", (128_256, 2048), "mean"),
    *(
        TensorSpec(f"layers.{layer}.{name}", shape, "rda")
        for layer in range(16)
        for name, shape in {
            "q": (2048, 2048),
            "k": (512, 2048),
            "v": (512, 2048),
            "o": (2048, 2048),
            "gate": (8192, 2048),
            "up": (8192, 2048),
            "down": (2048, 8192),
            "norms": (4096,),
        }.items()
    ),
    TensorSpec("norm", (2048,), "rda"),
]
"""Of the shapes of Llama 3.2 of 1 B, with its output table tied."""


def ratio(layout):
    sizes = [fragment.numel for fragment in layout.fragments]
    return max(sizes) * len(sizes) / sum(sizes)


@pytest.mark.parametrize("count", [8, 24, 64, 128])
def test_rows_split_a_table_that_is_larger_than_its_share(count):
    layout = build_layout(LLAMA_1B, "rows", count)
    assert ratio(layout) <= 1.2
    split = {
        span.name
        for fragment in layout.fragments
        for span in fragment.spans
        if span.numel < next(one.numel for one in LLAMA_1B if one.name == span.name)
    }
    assert "embed" in split
    assert ratio(build_layout(LLAMA_1B, "balanced", count)) > 1.2


def test_rows_split_nothing_where_nothing_is_too_large():
    for made in (MODEL, tensors(a=512, b=2048, c=1024, d=1024, e=512)):
        balanced = build_layout(made, "balanced", 2)
        assert build_layout(made, "rows", 2) == balanced


def test_a_vector_and_a_single_row_stay_whole():
    made = [*tensors(a=128_000, b=128), TensorSpec("row", (1, 64_000), "rda")]
    layout = build_layout(made, "rows", 3)
    assert sorted(map(len, names(layout))) == [1, 1, 1]


def test_balanced_breaks_ties_by_name_then_by_lowest_fragment():
    layout = build_layout(tensors(d=256, c=256, b=256, a=256), "balanced", 3)
    # a, b, c fill the fragments in turn; d meets three equal ones and takes the first.
    assert names(layout) == [["d", "a"], ["b"], ["c"]]


def test_spans_stand_in_the_order_of_the_model_whatever_their_size():
    layout = build_layout(tensors(small=10, large=9000, middle=500), "balanced", 1)
    assert names(layout) == [["small", "large", "middle"]]


def test_a_layer_stays_together_and_what_has_no_number_goes_before_or_after():
    layout = build_layout(MODEL, "layer", 5)
    assert names(layout) == [
        ["model.embed.weight"],
        ["model.layers.0.attn.weight", "model.layers.0.mlp.experts.1.weight"],
        ["model.layers.1.attn.weight", "model.layers.1.mlp.experts.0.weight"],
        ["model.layers.10.attn.weight"],
        ["model.norm.weight", "head.weight"],
    ]


def test_neighbouring_layers_share_fragments_about_evenly():
    layout = build_layout(MODEL, "layer", 3)
    assert [len(spans) for spans in names(layout)] == [3, 2, 3]
    assert [fragment.numel for fragment in layout.fragments] == [7296, 4864, 4224]


def test_layers_of_two_stacks_with_the_same_numbers_stay_apart():
    model = tensors(**{"enc.0.w": 128, "enc.1.w": 128, "dec.0.w": 128, "dec.1.w": 128})
    assert names(build_layout(model, "layer", 4)) == [
        ["enc.0.w"],
        ["enc.1.w"],
        ["dec.0.w"],
        ["dec.1.w"],
    ]


def test_tensor_gives_each_tensor_its_own_fragment_if_there_are_enough():
    layout = build_layout(tensors(a=1, b=100_000, c=1), "tensor", 3)
    assert names(layout) == [["a"], ["b"], ["c"]]


def test_tensor_joins_neighbours_evenly_if_there_are_fewer():
    layout = build_layout(tensors(a=128, b=128, c=128, d=128, e=128, f=128), "tensor", 3)
    assert names(layout) == [["a", "b"], ["c", "d"], ["e", "f"]]


def test_a_giant_at_the_end_does_not_leave_an_earlier_fragment_empty():
    layout = build_layout(tensors(a=128, b=128, c=128, d=100_000), "tensor", 3)
    assert [len(spans) for spans in names(layout)] == [2, 1, 1]


@pytest.mark.parametrize("strategy", WHOLE)
def test_more_fragments_than_pieces_is_refused_with_both_numbers(strategy):
    with pytest.raises(UserError, match=r"9 fragments.* only [58] "):
        build_layout(MODEL, strategy, 9)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("count", [0, -1])
def test_no_fragments_is_refused(strategy, count):
    with pytest.raises(UserError, match="at least 1"):
        build_layout(MODEL, strategy, count)


def test_two_tensors_of_one_name_are_refused():
    with pytest.raises(UserError, match=r"'model\.norm\.weight'"):
        build_layout([*MODEL, MODEL[6]], "tensor", 2)


def test_the_digest_is_the_same_on_every_host():
    digests = [build_layout(MODEL, strategy, 3).digest.hex() for strategy in WHOLE]
    assert digests == [
        "a22949cc9dcc7a0b8fcbd3f536e62baec884584951a6b23c3ad0aa002ab83a81",
        "7df7a231e792247aa24155a5184e89a0d7ba1eeb69ab5415abd0b0cd863ff395",
        "e7ed5bbcf77be41b35eda455606f132242b5aac77d62ca61d507606da8c13dc9",
    ]


def test_the_digest_of_split_tensors_is_the_same_on_every_host():
    layout = build_layout(MODEL, "rows", 7)
    assert any(span.start for fragment in layout.fragments for span in fragment.spans)
    assert layout.digest.hex() == "b72774207fcd97b5e712609e18898882f19954ef7c50389b20d13aec2d06d5aa"


@pytest.mark.parametrize(
    "changed",
    [
        TensorSpec("model.norm.bias", (40,), "rda"),
        TensorSpec("model.norm.weight", (41,), "rda"),
        TensorSpec("model.norm.weight", (40, 1), "rda"),
        TensorSpec("model.norm.weight", (40,), "mean"),
    ],
)
def test_any_change_to_a_tensor_changes_the_digest(changed):
    other = [changed if tensor.name == "model.norm.weight" else tensor for tensor in MODEL]
    assert build_layout(other, "layer", 3).digest != build_layout(MODEL, "layer", 3).digest


def test_layouts_are_values():
    assert build_layout(MODEL, "layer", 3) == build_layout(list(MODEL), "layer", 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        build_layout(MODEL, "layer", 3).parameters = 0
