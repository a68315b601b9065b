"""Many things in one line."""

from phalanx.recipe import first_few


def test_what_is_few_is_named():
    assert first_few([]) == ""
    assert first_few(["a", "b"]) == "a; b"
    assert first_few(list("abcde")) == "a; b; c; d; e"


def test_of_many_the_first_are_named_and_the_rest_is_counted():
    assert first_few([str(n) for n in range(2000)]) == "0; 1; 2; 3; 4; and 1,995 more"
    assert first_few(["a", "b", "c", "d", "e"], 7) == "a; b; c; d; e; and 2 more"
    assert first_few(["a"] * 6, between=", ") == "a, a, a, a, a and 1 more"
