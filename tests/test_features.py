"""Feature sets: orthonormality, rotations, Assumption 5.4, and the errors that name the argument."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from icl_core import features

sizes = st.integers(2, 6).flatmap(lambda K: st.tuples(st.just(K), st.integers(K, K + 6)))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(0, 2**40))
def test_orthonormal_sets_are_orthonormal_and_seeded(size, seed):
    K, d = size
    V = features.orthonormal(d, K, generator=features.generator(seed), batch=(3,))
    assert V.shape == (3, d, K)
    assert V.dtype == torch.float64
    assert torch.allclose(features.gram(V), torch.eye(K, dtype=torch.float64).expand(3, K, K), atol=1e-12)
    assert torch.equal(V, features.orthonormal(d, K, generator=features.generator(seed), batch=(3,)))


def test_orthonormal_is_uniform():
    # E[v v'] = I / d and no coordinate has a preferred sign; QR alone would fail the second.
    V = features.orthonormal(3, 2, generator=features.generator(0), batch=(20000,))
    v = V[..., 0]
    assert torch.allclose(v.mean(0), torch.zeros(3, dtype=torch.float64), atol=0.02)
    assert torch.allclose(v.T @ v / len(v), torch.eye(3, dtype=torch.float64) / 3, atol=0.02)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.floats(-7, 7), st.floats(-7, 7), st.data())
def test_rotations_form_a_group_and_leave_the_rest_alone(d, s, t, data):
    i, j = data.draw(st.lists(st.integers(1, d), min_size=2, max_size=2, unique=True))
    R = features.rotation(d, s, (i, j))
    assert torch.allclose(R @ R.T, torch.eye(d, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(R @ features.rotation(d, t, (i, j)), features.rotation(d, s + t, (i, j)), atol=1e-12)
    e_i = torch.eye(d, dtype=torch.float64)[i - 1]
    assert float((R @ e_i)[j - 1]) == pytest.approx(-math.sin(s))
    others = [k for k in range(d) if k not in (i - 1, j - 1)]
    assert torch.equal(R[others], torch.eye(d, dtype=torch.float64)[others])


def test_rotation_takes_a_batch_of_angles():
    angles = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
    many = features.rotation(4, angles, (2, 4))
    assert many.shape == (1, 3, 4, 4)
    assert torch.equal(many[0, 2], features.rotation(4, 2.0, (2, 4)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=5), st.integers(0, 1000))
def test_correlated_sets_meet_the_assumption_in_the_least_dimension(gamma, seed):
    K = len(gamma)
    d = K + sum(abs(g) < 1 for g in gamma)
    g = features.generator(seed)
    V = features.orthonormal(d, K, generator=g)
    U = features.correlated(V, gamma, generator=g)
    assert torch.allclose(features.gram(U), torch.eye(K, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(features.overlap(V, U), torch.diag(torch.tensor(gamma, dtype=torch.float64)), atol=1e-9)


def test_correlated_refuses_what_cannot_exist():
    g = features.generator(0)
    V = features.orthonormal(5, 3, generator=g)
    with pytest.raises(ValueError, match="d must be at least 6"):
        features.correlated(V, [0.5, 0.0, -0.5], generator=g)
    with pytest.raises(ValueError, match="gamma must have one entry per feature, K = 3"):
        features.correlated(V, [1.0, 1.0], generator=g)
    with pytest.raises(ValueError, match=r"gamma\[1\] must be a number"):
        features.correlated(V, [1.0, 1.5, 1.0], generator=g)
    with pytest.raises(ValueError, match="V must have orthonormal columns"):
        features.correlated(2 * V, [1.0, 1.0, 1.0], generator=g)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda g: features.orthonormal(3, 4, generator=g), "d must be at least K = 4"),
        (lambda g: features.orthonormal(3, 1, generator=g), "K must be an integer >= 2"),
        (lambda g: features.rotation(3, 0.1, (2, 2)), "plane must name two different coordinates"),
        (lambda g: features.rotation(3, 0.1, (1, 4)), "plane must be an integer in"),
        (lambda g: features.generator(-1), "seed must be an integer"),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call(features.generator(0))


def test_principal_angles_are_those_of_the_overlap():
    g = features.generator(4)
    V, U = (features.orthonormal(7, 3, generator=g) for _ in range(2))
    cosines = torch.linalg.svdvals(features.overlap(V, U)).flip(0)
    assert torch.allclose(torch.cos(torch.from_numpy(features.principal_angles(V, U).copy())), cosines)


def test_mean_feature_is_a_unit_vector_at_equal_distance():
    V = features.orthonormal(9, 5, generator=features.generator(1))
    mean = features.mean_feature(V)
    assert float(mean.norm()) == pytest.approx(1)
    assert torch.allclose(V.T @ mean, torch.full((5,), 5**-0.5, dtype=torch.float64))
