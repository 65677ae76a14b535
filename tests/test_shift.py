"""A user's own shift: numbers against the pieces they come from, and faults named with their file."""

import numpy as np
import pytest
import torch

from icl_core import features, population
from icl_core.experiments import shift as module
from icl_core.theory import ood


@pytest.fixture
def pair():
    g = features.generator(0)
    V = features.orthonormal(8, 3, generator=g)
    return V, features.correlated(V, [0.9, 0.3, -0.5], generator=g)


def test_numbers_are_those_of_the_theory(pair, tmp_path):
    V, U = pair
    paths = []
    for name, W in zip("VU", pair, strict=True):
        paths.append(tmp_path / f"{name}.npy")
        np.save(paths[-1], W.numpy())
    found = module.shift(*paths, eps=0.01, eta=0.5)
    frame = found.table.frame
    np.testing.assert_allclose(frame.overlap_own, [0.9, 0.3, -0.5], atol=1e-12)
    alpha = float(found.fine_tuning.scores_on_V_before[0, 0])
    np.testing.assert_allclose(frame.loss_u, ood.ood_loss(V, U, alpha), rtol=1e-9)
    np.testing.assert_allclose(frame.forgetting.sum(), float(found.fine_tuning.total_forgetting))
    assert np.all(found.fine_tuning.losses.numpy() <= 0.01 / 3)
    assert "total forgetting" in module.report(found)
    module.figure(found).savefig(tmp_path / "shift.png")


def test_sets_that_are_not_orthonormal_go_through_their_gram_matrix(pair):
    V, U = pair
    g = features.generator(1)
    U = U + 0.1 * torch.randn(U.shape, generator=g, dtype=U.dtype)
    found = module.shift(V, U, eps=0.02, eta=0.5)
    Q = V @ found.fine_tuning.trained @ V.T
    reference = population.token_level_losses(Q, U, found.fine_tuning.law)
    np.testing.assert_allclose(found.table.frame.loss_u, reference, rtol=1e-10)
    with pytest.raises(ValueError, match="U must have orthonormal columns"):
        module.shift(V, U, require_orthonormal=True)


def nan(W):
    W[1, 1] = np.nan
    return W


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (nan, r"U\.npy: must be finite, got nan at row 1, column 1"),
        (lambda W: W[:, :2], r"U\.npy: must have as many features as .*V\.npy, K = 3, got 2"),
        (lambda W: W[:5], r"U\.npy: must have the dimension of .*V\.npy, d = 8, got 5"),
        (lambda W: W[0], r"U\.npy: must have shape \(d, K\)"),
        (lambda W: W.T, r"U\.npy: .* got d = 3, K = 8 \(are the features rows"),
        (lambda W: W * 1j, r"U\.npy: must hold real numbers, got dtype complex128"),
        (lambda W: W * [1, 0, 1], r"U\.npy: every feature must be nonzero, got zeros in column 1"),
    ],
)
def test_faults_name_the_file(pair, tmp_path, spoil, message):
    np.save(tmp_path / "V.npy", pair[0].numpy())
    np.save(tmp_path / "U.npy", spoil(pair[1].numpy().copy()))
    with pytest.raises(ValueError, match=message):
        module.shift(tmp_path / "V.npy", tmp_path / "U.npy")


def test_files_that_are_no_arrays(tmp_path, pair):
    (tmp_path / "text.npy").write_text("hello")
    np.savez(tmp_path / "several.npz", a=np.zeros(2))
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, message in (
        ("absent.npy", r"absent\.npy: there is no such file"),
        ("text.npy", r"text\.npy: not a NumPy \.npy file"),
        ("several.npz", r"several\.npz: must hold one array"),
        ("objects.npy", r"objects\.npy: not a NumPy \.npy file of numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            module.shift(tmp_path / name, pair[1])


def test_eps_out_of_range(pair):
    with pytest.raises(ValueError, match=r"eps must be a number in \(0, 0\.333333\)"):
        module.shift(*pair, eps=0.4)
