"""Compiled gradient descent on the CPU for orthonormal features: the step of population.descent without its overhead.

Single steps of few instances cost far less than one tensor operation, and runs to small eps need millions of them.
The tests hold this loop to the tensor engine and that one to token-level autograd.
"""

from __future__ import annotations

import numba
import numpy as np

Array = np.ndarray


@numba.njit(cache=True, fastmath=False, parallel=True)
def advance(
    scores: Array, counts: Array, weights: Array, query: Array, noise: Array, label_noise: float, eta: Array,
    threshold: Array, step: Array, hit: Array, stalled: Array, limit: int, patience: int,
) -> Array:  # fmt: skip
    """Step every instance until its rule holds, its losses stop falling, or step ``limit`` is reached; in place.

    scores (B, K, K); counts (M, K); weights (M,); query (K,); noise (M, K) variance over counts; eta, threshold (B,);
    step (B,) steps done; hit (B, K) first step with loss <= threshold or -1; stalled (B,) set to 1 where the largest
    loss fell by less than one part in 1e9 over ``patience`` steps; returns losses (B, K) at the last scores.
    """
    B, K, _ = scores.shape
    M = counts.shape[0]
    out = np.empty((B, K))
    for b in numba.prange(B):
        s = scores[b]
        e = np.empty(K)
        a = np.empty(K)
        slope = np.empty(K)
        delta = np.empty((K, K))
        mark = np.inf
        while True:
            done = True
            worst = 0.0
            for k in range(K):
                for n in range(K):
                    e[n] = 1.0 if n == k else np.exp(s[n, k] - s[k, k])
                    delta[n, k] = 0.0
                loss = 0.0
                for m in range(M):
                    total = 0.0
                    others = 0.0
                    for n in range(K):
                        a[n] = counts[m, n] * e[n]
                        total += a[n]
                        if n != k:
                            others += a[n]
                    square = 0.0
                    for n in range(K):
                        a[n] /= total
                        r = -others / total if n == k else a[n]
                        slope[n] = r + noise[m, n] * a[n]
                        loss += weights[m] * (r * r + noise[m, n] * a[n] * a[n])
                        square += a[n] * slope[n]
                    for n in range(K):
                        delta[n, k] += weights[m] * a[n] * (square - slope[n])
                loss = 0.5 * query[k] * (loss + label_noise)
                out[b, k] = loss
                if loss <= threshold[b]:
                    if hit[b, k] < 0:
                        hit[b, k] = step[b]
                else:
                    done = False
                # A loss that is not a number counts as worse than any.
                worst = max(worst, loss) if loss == loss else np.inf
            if done or step[b] >= limit or not worst < np.inf:
                break
            if step[b] % patience == 0:
                if worst >= mark * (1 - 1e-9):
                    stalled[b] = 1
                    break
                mark = worst
            for k in range(K):
                for n in range(K):
                    s[n, k] += eta[b] * query[k] * delta[n, k]
            step[b] += 1
    return out
