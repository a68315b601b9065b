"""The slot tree: one fixed expression, whoever adds up which part of it."""

from hypothesis import given
from hypothesis import strategies as st

from phalanx.engine.strategies.exact import SlotTree, nodes_of
from phalanx.planner.schema.micro_batches import deal


class Expression(str):
    """A sum that remembers how it was made; the smaller operand first, since a + b is b + a."""

    def __add__(self, other):
        return Expression(f"({min(self, other)}+{max(self, other)})")


def root(tree):
    (value,) = tree.nodes.values()
    return value


def on_ranks(num_slots, ranks):
    """The expression that comes out when ranks add up their own parts first."""
    whole = SlotTree(num_slots)
    for rank in range(ranks):
        part = SlotTree(num_slots)
        first, last = deal(num_slots, rank, ranks)
        for slot in range(first, last):
            part.add((0, slot), Expression(f"s{slot:03}"))
        assert sorted(part.nodes) == nodes_of(first, last, num_slots)
        for node, value in part.nodes.items():
            whole.add(node, value)
    return root(whole)


@given(st.integers(1, 70), st.integers(1, 12))
def test_the_expression_does_not_depend_on_the_ranks(num_slots, ranks):
    assert on_ranks(num_slots, ranks) == on_ranks(num_slots, 1)


def test_the_tree_is_binary_and_balanced():
    assert on_ranks(4, 1) == "((s000+s001)+(s002+s003))"
    assert on_ranks(3, 1) == "((s000+s001)+s002)"


@given(st.integers(1, 70), st.integers(1, 12))
def test_a_rank_holds_few_sums(num_slots, ranks):
    for rank in range(ranks):
        first, last = deal(num_slots, rank, ranks)
        assert len(nodes_of(first, last, num_slots)) <= 2 * max(1, (last - first).bit_length())
