"""The rows that `make test` selects from a product of parameters (tests/contract/selection.py)."""

import itertools

from contract import pairwise

PARAMETERS = (range(5), "abc", [True, False], [None, 0])


def test_pairwise_covers_every_pair_of_values():
    rows = pairwise(*PARAMETERS, everything=False)
    for (i, one), (j, other) in itertools.combinations(enumerate(PARAMETERS), 2):
        assert {(row[i], row[j]) for row in rows} == set(itertools.product(one, other))
    assert len(rows) == len(set(rows)) < 20  # of 60


def test_pairwise_with_everything_returns_the_full_product():
    assert pairwise(*PARAMETERS, everything=True) == list(itertools.product(*PARAMETERS))
