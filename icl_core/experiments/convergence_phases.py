"""Four phases of an under-represented query: paths, measured exponents, sizes the windows need, finite prompts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from icl_core import _validate, dynamics, mean_field, population, prompts, results
from icl_core.experiments import explorables
from icl_core.features import generator
from icl_core.results import Table
from icl_core.theory import phases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Sizes of the exponent table: where simulations can be, and where the asymptotics is clean.
SMALL = tuple(range(3, 21))
LARGE = tuple(range(20, 301, 20))


def phase_ends(clock: Mapping[str, float]) -> list[float]:
    """Ends of the four phases on the clock, in order: a boundary that comes after a later one ends with that one.

    Parameters
    ----------
    clock : mapping
        ``T1`` ... ``T4`` as in :class:`icl_core.theory.phases.Report`; nan where not reached.
    """
    ends = [clock[name] for name in ("T1", "T2", "T3", "T4")]
    return [min(s for s in ends[i:] if s == s) for i in range(4)]


def trajectory(
    K: float | None = None,
    p1: float = 0.5,
    eps: float = 0.1,
    *,
    log2_K: float | None = None,
    command: str | None = None,
) -> Table:
    """Scores, attention and rates along the flow of an under-represented query, with the phase boundaries (Fig. 1).

    Parameters
    ----------
    K, log2_K : float
        Number of features, or its binary logarithm.
    p1, eps : float
        Probability of the dominant feature, target of the conditional loss.
    command : str, optional
        Shell command that makes the table again.

    Returns
    -------
    Table
        One row per point of the path; ``phase`` is 1 to 4, 5 past T4; a boundary that comes after a later one is
        ignored, so that a phase which does not exist has no rows.
    """
    started = time.perf_counter()
    found = phases.report(K, p1, eps, log2_K=log2_K)
    path = found.flow
    clock = np.concatenate([np.geomspace(1e-4, path.end, 150), np.linspace(0, path.end, 450)[1:]])
    clock = np.unique(np.concatenate([clock, [s for s in found.clock.values() if s == s]]))
    at = path.rates(clock)
    A, B1 = path.A(clock), path.B1(clock)
    later = phase_ends(found.clock)
    frame = pd.DataFrame({
        "s": clock,
        "log_time": path.log_time(clock),
        "A": A,
        "B1": B1,
        "Bn": path.Bn(clock),
        "attn_k": np.exp(at.target),
        "attn_1": np.exp(at.dominant),
        "attn_rest": np.exp(at.rest),
        "log_alpha": at.alpha,
        "log_minus_beta_1": at.minus_beta1,
        "loss": np.exp(path.log_loss(clock)),
        "phase": 1 + sum((clock > end).astype(int) for end in later),
    })  # fmt: skip
    parameters = {"log2_K": found.log_K / math.log(2), "p1": p1, "eps": eps}
    columns = {
        "s": "clock A - B1", "log_time": "natural log of eta * steps", "A": "score of the query's feature",
        "B1": "score of the dominant feature", "Bn": "score of every other feature",
        "attn_k": "attention on the query's feature", "attn_1": "on the dominant one", "attn_rest": "on all others",
        "log_alpha": "log rate of A", "log_minus_beta_1": "log rate of -B1", "loss": "L_k", "phase": "1-4, 5 after T4",
    }  # fmt: skip
    return Table(frame, results.provenance(parameters, started=started, command=command), columns)


def _under(log2_K: float, p1: float, eps: float) -> dict[str, float]:
    """Logarithms of everything the exponent table measures for query k > 1, at one size."""
    found = phases.report(p1=p1, eps=eps, log2_K=log2_K)
    at = {str(row["at"]): row for row in found.rows}
    third = found.flow.rates(np.linspace(found.clock["T2"], max(found.clock["T3"], found.clock["T2"]), 200))
    log_rest = mean_field.log_minus(found.log_K, 2)
    with np.errstate(divide="ignore"):
        gap = np.log(np.abs(np.exp(third.alpha - third.alpha.max()) - np.exp(third.minus_beta1 - third.alpha.max())))

    def row(name: str, key: str) -> float:
        return float(at[name][key]) if name in at else math.nan

    first = found.clock["T1"] <= found.clock["T2"]
    return {
        "T1": found.log_times["T1"] if first else math.nan,
        "T2": found.log_times["T2"],
        "T3": found.log_times["T3"],
        "T3-T2": found.log_times["T3-T2"],
        "T4-T3": found.log_times["T4-T3"],
        "time to L_k = eps": found.log_times["loss"],
        "A(T1)": math.log(row("T1", "A")) if first else math.nan,
        "exp B1(T2)": row("T2", "B1"),
        "Attn_1(T2)": row("T2", "log_attn_1"),
        "alpha(0)": row("start", "log_alpha"),
        "|beta_1|(0)": row("start", "log_minus_beta_1"),
        "|beta_n|(0)": row("start", "log_abs_beta_n"),
        "|beta_1|(T1)": row("T1", "log_minus_beta_1") if first else math.nan,
        "alpha(T2)": row("T2", "log_alpha"),
        "|beta_1|(T2)": row("T2", "log_minus_beta_1"),
        "|beta_n|(T2)": row("T2", "log_abs_beta_n"),
        "max |beta_1| in III": float(third.minus_beta1.max()),
        "max |beta_n| in III": float(gap.max() + third.alpha.max() - log_rest),
        "|beta_1|/alpha at T4": row("T4", "log_minus_beta_1") - row("T4", "log_alpha"),
    }


# Quantity, where it is claimed, claimed power of K and of log K (an upper bound unless the paper writes Theta).
CLAIMED: tuple[tuple[str, str, float, float], ...] = (
    ("T1", "conv.lem-4.3", 1.98, 1),
    ("T2", "conv.lem-4.4", 2.0, 1),
    ("T3", "conv.lem-4.5", 1.5, 1),
    ("T3-T2", "conv.lem-F.18", 1.5, 1),
    ("T4-T3", "conv.lem-4.6", 1.0, 1),
    ("time to L_k = eps", "conv.thm-3.3.under", 2.0, 1),
    ("A(T1)", "conv.ih-F.1", -0.02, 1),
    ("exp B1(T2)", "conv.lem-4.4", -0.5, 0),
    ("Attn_1(T2)", "conv.lem-F.7", -0.5, 0),
    ("alpha(0)", "conv.sec-4.2.1", -2.0, 0),
    ("|beta_1|(0)", "conv.sec-4.2.1", -1.0, 0),
    ("|beta_n|(0)", "conv.sec-4.2.1", -2.0, 0),
    ("|beta_1|(T1)", "conv.lem-4.3", -1.98, 0),
    ("alpha(T2)", "conv.lem-4.5", -1.5, 0),
    ("|beta_1|(T2)", "conv.sec-4.2.3", -1.98, 0),
    ("|beta_n|(T2)", "conv.sec-4.2.3", -3.0, 0),
    ("max |beta_1| in III", "conv.sec-4.2.3", -1.98, 0),
    ("max |beta_n| in III", "conv.sec-4.2.3", -3.0, 0),
    ("|beta_1|/alpha at T4", "conv.lem-F.22", -0.49, 0),
)  # fmt: skip

# The same for queries whose off-target features are alike, by closed form: log of the quantity from log K, p1, eps.
ALIKE: tuple[tuple[str, str, float, float, Callable[[float, float, float], float]], ...] = (
    ("balanced T1", "conv.lem-E.5", 2.0, 1, lambda K, _p, _e: math.log(phases.balanced_phase_one(K)[0])),
    ("balanced time to L = eps", "conv.thm-3.2.loss", 2.0, 1,
     lambda K, _p, e: math.log(phases.balanced_loss_time(K, e))),
    ("balanced time from 2 eps to eps", "conv.lem-E.10", 1.0, 1,
     lambda K, _p, e: math.log(phases.alike_time(K, 1 / K, *(phases.alike_off(K, 1 / K, x) for x in (e, 2 * e))))),
    ("time to L_1 = eps", "conv.thm-3.3.dominant", 0.0, 0,
     lambda K, p, e: math.log(phases.dominant_loss_time(K, p, e))),
)  # fmt: skip


# Claim, power of K and of log K, by quantity.
_PAPER: dict[str, tuple[str, float, float]] = {row[0]: (row[1], row[2], row[3]) for row in CLAIMED}
_PAPER |= {row[0]: (row[1], row[2], row[3]) for row in ALIKE}


def sizes_table(
    p1: Sequence[float] = (0.3, 0.5, 0.8),
    eps: float = 0.01,
    *,
    small: Sequence[float] = SMALL,
    large: Sequence[float] = LARGE,
    store: str | None = None,
    executor: Executor | None = None,
    command: str | None = None,
) -> Table:
    """Every quantity of the exponent table at every size, as a logarithm: what :func:`fits` fits.

    Parameters
    ----------
    p1 : sequence of float
        Probabilities of the dominant feature.
    eps : float
        Target of the loss.
    small, large : sequence of float
        Binary logarithms of the sizes; at least 5 each.
    store, executor
        As in :func:`icl_core.results.sweep`.
    command : str, optional
        Shell command that makes the table again.

    Returns
    -------
    Table
        One row per quantity, p1, range of sizes and size; ``log_value`` is nan where a phase does not exist.
    """
    started = time.perf_counter()
    p1 = _validate.reals("p1", p1, above=0.0, below=1.0)
    eps = _validate.real("eps", eps, above=0.0, below=1.0)
    for name, sizes in (("small", small), ("large", large)):
        if len(sizes) < 5:
            raise ValueError(f"{name} must hold at least 5 sizes, got {len(sizes)}")
    ranges = (("small", small), ("large", large))
    cases = [(p, label, float(x)) for p in p1 for label, sizes in ranges for x in sizes]
    points = [{"log2_K": x, "p1": p, "eps": eps} for p, _, x in cases]
    rows: list[dict[str, Any]] = []
    for (p, label, x), found in zip(cases, results.sweep(_under, points, store=store, executor=executor), strict=True):
        values = dict(found)
        for name, _, _, _, value in ALIKE:
            values[name] = value(2.0**x, p, eps)
        rows += [{"quantity": name, "p1": p, "range": label, "log2_K": x, "log_value": values[name]} for name in _PAPER]
    columns = {
        "quantity": "what is measured", "range": "small or large sizes", "log2_K": "log2 of the number of features",
        "log_value": "natural logarithm of the quantity",
    }  # fmt: skip
    parameters = {"p1": p1, "eps": eps, "small": list(small), "large": list(large)}
    return Table(pd.DataFrame(rows), results.provenance(parameters, started=started, command=command), columns)


def fits(measured: Table) -> Table:
    """Powers of K and of log K from :func:`sizes_table`'s values, beside those of the paper, with the slope's drift.

    Returns
    -------
    Table
        ``power`` and ``log_power`` with 95 % half-widths ``..._error`` from the joint fit; ``first_slope``,
        ``last_slope``, and ``low``, ``high``: the local slope at the ends and its range over the upper half.
        ``constant`` is log(quantity) minus the claimed power of K at the largest size: bounded if no logarithm is real.
    """
    rows = []
    for (p, label, name), part in measured.frame.groupby(["p1", "range", "quantity"], sort=False):
        claim, power, log_power = _PAPER[str(name)]
        sizes = part.log2_K.tolist()
        log_K = [x * math.log(2) for x in sizes]
        rows.append(_row(str(name), claim, p, str(label), sizes, log_K, part.log_value.tolist(), power, log_power))
    columns = {
        "power": "fitted power of K", "log_power": "fitted power of log K", "low": "least local slope, upper half",
        "high": "greatest local slope, upper half", "claimed_power": "power of K in the paper",
        "claimed_log": "power of log K in the paper", "constant": "log of quantity / K^claimed at the largest K",
    }  # fmt: skip
    return Table(pd.DataFrame(rows), measured.provenance, columns)


def exponents(
    p1: Sequence[float] = (0.3, 0.5, 0.8),
    eps: float = 0.01,
    *,
    small: Sequence[float] = SMALL,
    large: Sequence[float] = LARGE,
    store: str | None = None,
    executor: Executor | None = None,
) -> Table:
    """Measured powers of K and of log K for every order statement, over two ranges of K: :func:`fits` of the sizes.

    Parameters
    ----------
    p1, eps, small, large, store, executor
        As in :func:`sizes_table`.
    """
    return fits(sizes_table(p1, eps, small=small, large=large, store=store, executor=executor))


def _row(
    name: str,
    claim: str,
    p1: float,
    label: str,
    sizes: Sequence[float],
    log_K: list[float],
    values: list[float],
    power: float,
    log_power: float,
) -> dict[str, Any]:
    usable = [i for i, value in enumerate(values) if math.isfinite(value)]
    row: dict[str, Any] = {
        "quantity": name, "claim": claim, "p1": p1, "range": label,
        "log2_K_min": sizes[usable[0]] if usable else math.nan,
        "log2_K_max": sizes[usable[-1]] if usable else math.nan,
        "claimed_power": power, "claimed_log": log_power,
    }  # fmt: skip
    if len(usable) < 5:
        return row
    fit = phases.exponent(log_K, values)
    return row | {
        "power": fit.power, "power_error": fit.power_error,
        "log_power": fit.log_power, "log_power_error": fit.log_power_error,
        "first_slope": fit.slopes[0], "last_slope": fit.slopes[-1], "low": fit.low, "high": fit.high,
        "constant": values[usable[-1]] - power * log_K[usable[-1]],
    }  # fmt: skip


def _threshold(p1: float, window: str, most: float) -> dict[str, float]:
    return {"log2_K": phases.smallest_log2_K(window, p1, most=most)}


def thresholds(
    p1: Sequence[float] = (0.1, 0.2, 0.3, 0.4142, 0.5, 0.6, 0.7, 0.8, 0.9),
    *,
    most: float = 600.0,
    store: str | None = None,
    executor: Executor | None = None,
    command: str | None = None,
) -> Table:
    """Smallest K from which each window of Lemmas 4.3 and 4.4 holds, as a function of p1, beside its leading order.

    Parameters
    ----------
    p1 : sequence of float
        Probabilities of the dominant feature.
    most : float
        Largest log2 K looked at.
    store, executor
        As in :func:`icl_core.results.sweep`.
    command : str, optional
        Shell command that makes the table again.
    """
    started = time.perf_counter()
    p1 = _validate.reals("p1", p1, above=0.0, below=1.0)
    cases = [(p, text) for p in p1 for text in phases.WINDOW_TEXTS]
    points = [{"p1": p, "window": text, "most": float(most)} for p, text in cases]
    found = results.sweep(_threshold, points, store=store, executor=executor)
    rows = []
    for (p, text), value in zip(cases, found, strict=True):
        high, low = phases.window_log2_K(p)
        predicted = {
            "A(T1) <= 0.1": phases.near_zero_log2_K(p, 0.1),
            "A(T2) >= 0.5 log K": low,
        }.get(text, high)
        proof = phases.proof_log2_K(p) if text == "A(T2) >= 0.5 log K" else math.nan
        rows.append({"p1": p, "window": text, "log2_K": value["log2_K"], "leading_order": predicted, "proof": proof})
    columns = {
        "log2_K": "log2 of the smallest K from which the window holds (measured)",
        "leading_order": "the same from the closed form", "proof": "where the paper's argument for it starts to work",
    }  # fmt: skip
    return Table(
        pd.DataFrame(rows), results.provenance({"p1": p1, "most": most}, started=started, command=command), columns
    )


def drift(
    p1: Sequence[float] = (0.1, 0.2, 0.3, 0.4142, 0.5, 0.6, 0.7, 0.8, 0.9),
    sizes: Sequence[float] = (4, 6, 8, 11, 15, 20, 28, 40, 56, 80, 110, 150, 210, 300, 420, 600),
    *,
    store: str | None = None,
    executor: Executor | None = None,
    command: str | None = None,
) -> Table:
    """Scores at the end of phase II in units of log K, as K grows: how slowly they drift into their windows.

    Parameters
    ----------
    p1 : sequence of float
        Probabilities of the dominant feature; sizes below 1/p1 are left out.
    sizes : sequence of float
        Binary logarithms of K, at least log2 3.
    store, executor
        As in :func:`icl_core.results.sweep`.
    command : str, optional
        Shell command that makes the table again.

    Returns
    -------
    Table
        ``A`` and ``B1`` at ``A - B1 = 1.01 log K`` over log K, and the leading order of ``B1`` over log K.
    """
    started = time.perf_counter()
    p1 = _validate.reals("p1", p1, above=0.0, below=1.0)
    sizes = _validate.reals("sizes", sizes, least=math.log2(3))
    points = [{"p1": p, "log2_K": x} for p in p1 for x in sizes if p * 2.0**x > 1]
    rows = [
        {**point, **found, "B1_leading": -0.5 - math.log2(phases.suppression(point["p1"])) / point["log2_K"]}
        for point, found in zip(points, results.sweep(_drift, points, store=store, executor=executor), strict=True)
    ]
    columns = {
        "A": "A(T2) / log K", "B1": "B1(T2) / log K", "B1_leading": "the same to leading order in K",
        "log2_K": "log2 of the number of features",
    }  # fmt: skip
    about = results.provenance({"p1": p1, "sizes": sizes}, started=started, command=command)
    return Table(pd.DataFrame(rows), about, columns)


def _drift(p1: float, log2_K: float) -> dict[str, float]:
    log_K = log2_K * math.log(2)
    A = float(mean_field.flow(log_K, p1, A_end=1.02 * log_K + 1, rtol=1e-9).A(phases.GAP * log_K)) / log_K
    return {"A": A, "B1": A - phases.GAP}


def shares(cases: Sequence[tuple[float, float]], eps: float = 0.1) -> Table:
    """Where the time up to T4 goes, and whether the stated windows hold at one size.

    Parameters
    ----------
    cases : sequence of (K, p1)
        Settings, K >= 3 and p1 >= 1/K.
    eps : float
        Target of the conditional loss.

    Returns
    -------
    Table
        Per setting the percentage of the time spent in each phase (0 for a phase that does not exist), the scores at
        the end of phase II over log K, A(T1) (nan where phase I does not end first) and how many of the windows of
        :func:`icl_core.theory.phases.windows` hold.
    """
    started = time.perf_counter()
    rows = []
    for K, p1 in cases:
        found = phases.report(K, p1, eps)
        at = {str(row["at"]): row for row in found.rows}
        first = found.clock["T1"] <= found.clock["T2"]
        rows.append({
            "K": K, "p1": p1, **_percentages(found.flow, found.clock),
            "A_T1": float(at["T1"]["A"]) if first else math.nan,
            "A_T2": float(at["T2"]["A"]) / found.log_K, "B1_T2": float(at["T2"]["B1"]) / found.log_K,
            "hold": sum(w.holds for w in found.windows), "windows": len(found.windows),
        })  # fmt: skip
    columns = {
        "I": "% of the time to T4 in phase I", "II": "% in II", "III": "% in III", "IV": "% in IV",
        "A_T1": "A(T1)", "A_T2": "A(T2) / log K", "B1_T2": "B1(T2) / log K",
        "hold": "windows that hold", "windows": "windows looked at",
    }  # fmt: skip
    parameters = {"cases": [list(case) for case in cases], "eps": eps}
    return Table(pd.DataFrame(rows), results.provenance(parameters, started=started), columns)


def _percentages(path: mean_field.Flow, clock: Mapping[str, float]) -> dict[str, float]:
    """Share of the time to T4 in each phase, in percent."""
    edges = [0.0, *phase_ends(clock)]
    total = float(path.log_time(edges[-1]))
    return {
        name: 100 * math.exp(path.log_elapsed(a, b) - total) if b > a else 0.0
        for name, (a, b) in zip(("I", "II", "III", "IV"), itertools.pairwise(edges), strict=True)
    }


def collapse(sizes: Sequence[float] = (7, 10, 20, 60), p1: float = 0.5, points: int = 160) -> Table:
    """B1 against A for several K, moved by ``log(K)/2 + log r``: for large K all lie on one curve.

    Parameters
    ----------
    sizes : sequence of float
        Binary logarithms of K.
    p1 : float
        Probability of the dominant feature.
    points : int
        Points per size.

    Returns
    -------
    Table
        ``moved`` is ``B1 + log(K)/2 + log r``; ``curve`` is its limit ``-log(1 - exp(-A))/2``.
    """
    started = time.perf_counter()
    sizes = _validate.reals("sizes", sizes, least=math.log2(3))
    parts = []
    for x in sizes:
        log_K = x * math.log(2)
        path = mean_field.flow(log_K, p1, A_end=log_K, rtol=1e-9)
        clock = np.linspace(0, path.end, points + 1)[1:]
        A = path.A(clock)
        moved = path.B1(clock) + log_K / 2 + math.log(phases.suppression(p1))
        with np.errstate(divide="ignore"):
            curve = -0.5 * np.log(-np.expm1(-A))
        parts.append(pd.DataFrame({"log2_K": x, "A": A, "moved": moved, "curve": curve}))
    columns = {
        "log2_K": "log2 of the number of features", "A": "score of the query's feature",
        "moved": "B1 + log(K)/2 + log r", "curve": "its limit for large K",
    }  # fmt: skip
    about = results.provenance({"sizes": sizes, "p1": p1}, started=started)
    return Table(pd.concat(parts, ignore_index=True), about, columns)


def balanced_times(sizes: Sequence[float] = tuple(range(2, 31)), eps: Sequence[float] = (0.1, 0.01, 0.001)) -> Table:
    """Time until the balanced loss is eps: closed form, its leading order, and the paper's bound without a constant.

    Parameters
    ----------
    sizes : sequence of float
        Binary logarithms of K, at least 1.
    eps : sequence of float
        Targets of the total loss.

    Returns
    -------
    Table
        ``time``; ``leading`` = ``K^2 + K/(4 eps)``; ``bound`` = ``K^2 log K + K log(K eps^-1/2)/eps``.
    """
    started = time.perf_counter()
    sizes = _validate.reals("sizes", sizes, least=1.0, most=1000.0)
    eps = _validate.reals("eps", eps, above=0.0, below=1.0)
    rows = [
        {
            "log2_K": x, "eps": e, "time": phases.balanced_loss_time(K, e), "leading": K * K + K / (4 * e),
            "bound": K * K * math.log(K) + K * math.log(K / math.sqrt(e)) / e,
        }
        for x in sizes
        for K in (2.0**x,)
        for e in eps
    ]  # fmt: skip
    columns = {
        "time": "exact time to loss eps", "leading": "K^2 + K/(4 eps)",
        "bound": "K^2 log K + K log(K eps^-1/2)/eps", "log2_K": "log2 of the number of features",
    }  # fmt: skip
    about = results.provenance({"sizes": sizes, "eps": eps}, started=started)
    return Table(pd.DataFrame(rows), about, columns)


def finite_prompts(
    K: Sequence[int] = (3, 10, 30),
    length: Sequence[int] = (1, 20),
    p1: float = 0.5,
    A_end: float = 2.0,
    samples: int = 100,
    repeats: int = 6,
    seed: int = 0,
    command: str | None = None,
) -> Table:
    """Flow with prompts of ``length * K^3`` tokens beside the limit of long prompts.

    Counts are enumerated where there are at most 20000 count vectors, else sampled ``repeats`` times, each time
    ``samples`` prompts; the interval is Student's, 95 %.

    Parameters
    ----------
    K : sequence of int
        Numbers of features, at least 3.
    length : sequence of int
        Prompt lengths in units of K^3.
    p1, A_end : float
        Probability of the dominant feature; score of the target at which the times are compared.
    samples, repeats : int
        Prompts per sample, number of samples (at least 2).
    seed : int
        Seed of the draws.
    command : str, optional
        Shell command that makes the table again.

    Returns
    -------
    Table
        ``log_ratio``: log of time to A = A_end over the limit's; ``B1_gap``: difference of B1 there; with half-widths.
    """
    from scipy import stats

    started = time.perf_counter()
    repeats = _validate.integer("repeats", repeats, least=2)
    samples = _validate.integer("samples", samples, least=2)
    p1 = _validate.real("p1", p1, above=0.0, below=1.0)
    rows = []
    for size in (_validate.integer("K", k, least=3) for k in K):
        p = [p1] + [(1 - p1) / (size - 1)] * (size - 1)
        limit = mean_field.flow(math.log(size), p1, A_end=A_end)
        for factor in length:
            N = factor * size**3
            exact = math.comb(N + size - 1, size - 1) <= 20_000
            source = generator(seed)
            laws = (
                [prompts.multinomial(p, N)]
                if exact
                else [prompts.multinomial_sample(p, N, samples, generator=source) for _ in range(repeats)]
            )
            paths = [mean_field.flow(math.log(size), p1, A_end=A_end, law=law, rtol=1e-6) for law in laws]
            ratio = np.array([float(x.log_time(x.end)) - float(limit.log_time(limit.end)) for x in paths])
            gap = np.array([float(x.B1(x.end)) - float(limit.B1(limit.end)) for x in paths])
            spread = 0.0 if exact else float(stats.t.ppf(0.975, repeats - 1)) / math.sqrt(repeats)
            rows.append({
                "K": size, "N": N, "method": "enumerated" if exact else "sampled",
                "log_ratio": ratio.mean(), "log_ratio_error": spread * ratio.std(ddof=0 if exact else 1),
                "B1_gap": gap.mean(), "B1_gap_error": spread * gap.std(ddof=0 if exact else 1),
            })  # fmt: skip
    parameters = {
        "K": list(K), "length": list(length), "p1": p1, "A_end": A_end, "samples": samples, "repeats": repeats,
    }  # fmt: skip
    columns = {
        "log_ratio": "log of the time to A = A_end over that of long prompts", "B1_gap": "difference of B1 there",
        "log_ratio_error": "95 % half-width, 0 if enumerated", "B1_gap_error": "95 % half-width, 0 if enumerated",
    }  # fmt: skip
    about = results.provenance(parameters, seed=seed, started=started, command=command)
    return Table(pd.DataFrame(rows), about, columns)


def unequal_shares(K: Sequence[int] = (8, 16, 32), ratio: float = 3.0, eps: float = 0.1) -> Table:
    """When features of unequal but comparable probability finish stage I (Theorem E.17's common time).

    Half the features are ``ratio`` times as likely as the other half, p_k = Theta(1/K). The proof takes the last
    feature's end of stage I and says that every other feature is still within O(K log(K eps^-1/2)/eps) of its own;
    but the ends differ by Theta(K^2).

    Parameters
    ----------
    K : sequence of int
        Even numbers of features.
    ratio : float
        Ratio of the two probabilities, above 1.
    eps : float
        A query's stage I is taken to end at conditional loss eps / 6.

    Returns
    -------
    Table
        Times, their difference over K^2, and over the stage's length ``K log(K eps^-1/2) / eps``; ``held`` says
        whether the early features' loss is still below at the common time.
    """
    started = time.perf_counter()
    ratio, eps = _validate.real("ratio", ratio, above=1.0), _validate.real("eps", eps, above=0.0, below=1.0)
    rows = []
    for size in (_validate.integer("K", k, least=4) for k in K):
        if size % 2:
            raise ValueError(f"K must hold even numbers, got {size}")
        small = 2 / (size * (1 + ratio))
        p = [ratio * small] * (size // 2) + [small] * (size // 2)
        law = prompts.mean_field(p, 1.0)
        target = eps / 6
        events = {"early": _falls_to(target, 0, law), "late": _falls_to(target, size - 1, law)}
        path, times = dynamics.gradient_flow(
            torch.zeros(size, size, dtype=torch.float64), law, threshold=small * target / 1.02, events=events,
            rtol=1e-7, atol=1e-9,
        )  # fmt: skip
        final = population.losses(path.scores[-1], law) / law.query
        early, late = times["early"], times["late"]
        rows.append({
            "K": size, "early": early, "late": late,
            "gap_over_K2": (late - early) / size**2,
            "gap_over_stage": (late - early) / (size * math.log(size / math.sqrt(eps)) / eps),
            "held": bool(final[0] < target),
        })  # fmt: skip
    parameters = {"K": list(K), "ratio": ratio, "eps": eps}
    columns = {
        "early": "time at which the likelier features end stage I", "late": "the same for the others",
        "gap_over_K2": "difference / K^2", "gap_over_stage": "difference / (K log(K eps^-1/2)/eps)",
        "held": "early features still below the target at the end",
    }  # fmt: skip
    return Table(pd.DataFrame(rows), results.provenance(parameters, started=started), columns)


def _falls_to(target: float, k: int, law: prompts.PromptLaw) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Event of the flow: the conditional loss of query k is ``target``."""
    share = float(law.query[k])
    return lambda _, losses: math.log(float(losses[k]) / share / target)


def drivers(K: int = 3, p1: float = 0.8, N: int | None = 60, A_end: float = 5.0) -> Table:
    """Which weight moves which attention score of an under-represented query (the reading of Fig. 3).

    The rate of log Attn_m is ``score rate of m`` minus the attention-weighted mean rate; each score contributes apart.

    Parameters
    ----------
    K : int
        Number of features, at least 3.
    p1 : float
        Probability of the dominant feature.
    N : int, optional
        Prompt length, counts enumerated; None for the limit of long prompts.
    A_end : float
        Where to stop.

    Returns
    -------
    Table
        ``attn_*`` at the expected counts, and the contributions of A, B1 and B_n to the rate of log ``attn_n`` per
        unit of the clock s = A - B1.
    """
    started = time.perf_counter()
    K = _validate.integer("K", K, least=3)
    p = [p1] + [(1 - p1) / (K - 1)] * (K - 1)
    law = None if N is None else prompts.multinomial(p, N)
    path = mean_field.flow(math.log(K), p1, A_end=A_end, law=law, rtol=1e-9)
    clock = np.linspace(0, path.end, 120)
    at = path.rates(clock)
    a, b, C = np.exp(at.target), np.exp(at.dominant), np.exp(at.rest)
    alpha, beta1 = np.exp(at.alpha), -np.exp(at.minus_beta1)
    beta_n = -(alpha + beta1) / (K - 2)
    speed = alpha - beta1
    frame = pd.DataFrame({
        "s": clock, "log_time": path.log_time(clock), "attn_k": a, "attn_1": b, "attn_n": C / (K - 2),
        "by_A": -a * alpha / speed, "by_B1": -b * beta1 / speed, "by_Bn": (1 - C) * beta_n / speed,
        "alpha_over_beta_1": alpha / -beta1,
    })  # fmt: skip
    frame["d_log_attn_n"] = frame.by_A + frame.by_B1 + frame.by_Bn
    columns = {
        "by_A": "part of d log Attn_n / ds due to A", "by_B1": "due to B1", "by_Bn": "due to B_n",
        "d_log_attn_n": "their sum", "alpha_over_beta_1": "alpha / |beta_1|",
    }  # fmt: skip
    parameters = {"K": K, "p1": p1, "N": N, "A_end": A_end}
    return Table(frame, results.provenance(parameters, started=started), columns)


def figure_trajectory(table: Table, against: str = "clock") -> Figure:
    """Draw attention and scores with bands for the phases, from :func:`trajectory`'s table.

    Parameters
    ----------
    table : Table
        From :func:`trajectory`.
    against : {"clock", "time"}
        The clock A - B1, or the logarithm of time: there phases III and IV, a share K^-1/2 of the time before them,
        shrink to a line as K grows.
    """
    import matplotlib.pyplot as plt

    _validate.choice("against", against, ("clock", "time"))
    frame = table.frame[np.isfinite(table.frame.log_time)]
    across = frame.s if against == "clock" else frame.log_time / math.log(10)
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 5.4))
    for column, label in (("attn_k", "query's feature"), ("attn_1", "dominant feature"), ("attn_rest", "all others")):
        top.plot(across, frame[column], label=label)
    for column, label in (("A", "$A$"), ("B1", "$B_1$"), ("Bn", "$B_n$")):
        bottom.plot(across, frame[column], label=label)
    width = across.max() - across.min()
    for axis in (top, bottom):
        for phase, group in frame.groupby("phase"):
            edge = across[group.index]
            axis.axvspan(edge.min(), edge.max(), color="0.5", alpha=0.18 if phase % 2 else 0.04, lw=0)
            if axis is top and phase < 5 and edge.max() - edge.min() > 0.02 * width:
                axis.text(edge.mean(), 1.03, ("I", "II", "III", "IV")[int(phase) - 1], ha="center", fontsize=8)
        axis.legend(fontsize=8)
    top.set(ylabel="attention", ylim=(-0.02, 1.1), xlim=(across.min(), across.max()))
    label = "score gap $A - B_1$" if against == "clock" else r"$\log_{10}(\eta \cdot$ steps)"
    bottom.set(xlabel=label, ylabel="score")
    return figure


def figure_drift(table: Table) -> Figure:
    """Draw B1(T2) / log K against log2 K with the stated window, from :func:`drift`'s table."""
    import matplotlib.pyplot as plt

    from icl_core.plotting import COLORS

    figure, axis = plt.subplots()
    axis.axhspan(phases.DOMINANT_LOW, phases.DOMINANT_HIGH, color="0.5", alpha=0.25, lw=0)
    for i, (p, part) in enumerate(table.frame.groupby("p1")):
        # Colours and dashes come back after seven lines; markers tell the second round apart.
        axis.plot(part.log2_K, part.B1, marker="o" if i >= len(COLORS) else None, ms=3.5, label=f"$p_1={p:g}$")
    axis.set(xscale="log", xlabel=r"$\log_2 K$", ylabel=r"$B_1(T_2)\,/\,\log K$", ylim=(-0.8, -0.3))
    axis.set_xticks([4, 8, 16, 32, 64, 128, 256, 512], ["4", "8", "16", "32", "64", "128", "256", "512"])
    axis.minorticks_off()
    axis.legend(fontsize=8, ncols=3, loc="lower right")
    return figure


def figure_thresholds(table: Table) -> Figure:
    """Draw the size each window needs against p1, measured and to leading order."""
    import matplotlib.pyplot as plt

    from icl_core.plotting import COLORS

    figure, axis = plt.subplots()
    grid = np.linspace(0.06, 0.94, 400)
    curves: dict[str, Callable[[float], float]] = {
        "A(T2) >= 0.5 log K": lambda p: phases.window_log2_K(p)[1],
        "B1(T2) <= -0.49 log K": lambda p: phases.window_log2_K(p)[0],
        "A(T1) <= 0.1": lambda p: phases.near_zero_log2_K(p, 0.1),
    }
    labels = (r"$A(T_2) \geq 0.5 \log K$", r"$B_1(T_2) \leq -0.49 \log K$", r"$A(T_1) \leq 0.1$")
    for (text, curve), label, color, marker in zip(curves.items(), labels, COLORS, "os^", strict=False):
        axis.plot(grid, [curve(p) for p in grid], color=color, linestyle="-")
        part = table.frame[table.frame.window == text]
        axis.plot(part.p1, part.log2_K, marker, color=color, label=label)
    axis.set(xlabel="$p_1$", ylabel=r"$\log_2 K$ from which it holds", ylim=(-10, 620))
    axis.legend()
    return figure


def figure_slopes(measured: Table, quantities: Sequence[str]) -> Figure:
    """Draw the local slope d log y / d log K against log2 K, beside the claimed power.

    Parameters
    ----------
    measured : Table
        From :func:`sizes_table`.
    quantities : sequence of str
        Names in its column ``quantity``.
    """
    import matplotlib.pyplot as plt

    for name in quantities:
        _validate.choice("quantities", name, tuple(_PAPER))
    high = (len(quantities) + 1) // 2
    figure, axes = plt.subplots(high, 2, figsize=(7.0, 2.6 * high), sharex=True, squeeze=False)
    for axis, name in zip(axes.flat, quantities, strict=False):
        for p, part in measured.frame[measured.frame.quantity == name].groupby("p1"):
            part = part.sort_values("log2_K").drop_duplicates("log2_K")
            sizes, y = part.log2_K.to_numpy(), part.log_value.to_numpy()
            axis.plot((sizes[1:] + sizes[:-1]) / 2, np.diff(y) / np.diff(sizes) / math.log(2), label=f"$p_1 = {p:g}$")
        axis.axhline(_PAPER[name][1], color="black", lw=1, ls=":")
        axis.set(title=written(name), xscale="log")
        axis.set_xticks([4, 8, 16, 32, 64, 128, 256], ["4", "8", "16", "32", "64", "128", "256"])
        axis.minorticks_off()
    for axis in axes.flat[len(quantities) :]:
        axis.remove()
    for axis in axes[-1]:
        axis.set_xlabel(r"$\log_2 K$")
    for axis in axes[:, 0]:
        axis.set_ylabel("local power of $K$")
    axes[0][0].legend(fontsize=8)
    return figure


_TEX = {
    "T1": "$T_1$", "T2": "$T_2$", "T3": "$T_3$", "T3-T2": "$T_3-T_2$", "T4-T3": "$T_4-T_3$",
    "time to L_k = eps": r"time to $L_k=\epsilon$", "A(T1)": "$A(T_1)$", "exp B1(T2)": "$e^{B_1(T_2)}$",
    "Attn_1(T2)": r"$\mathrm{Attn}_1(T_2)$", "alpha(0)": r"$\alpha(0)$", "|beta_1|(0)": r"$|\beta_1|(0)$",
    "|beta_n|(0)": r"$|\beta_n|(0)$", "|beta_1|(T1)": r"$|\beta_1|(T_1)$", "alpha(T2)": r"$\alpha(T_2)$",
    "|beta_1|(T2)": r"$|\beta_1|(T_2)$", "|beta_n|(T2)": r"$|\beta_n|(T_2)$",
    "max |beta_1| in III": r"largest $|\beta_1|$ in III", "max |beta_n| in III": r"largest $|\beta_n|$ in III",
    "|beta_1|/alpha at T4": r"$|\beta_1|/\alpha$ at $T_4$", "balanced T1": "balanced $T_1$",
    "balanced time to L = eps": r"balanced, to $L=\epsilon$",
    "balanced time from 2 eps to eps": r"balanced, $L=2\epsilon$ to $\epsilon$",
    "time to L_1 = eps": r"time to $L_1=\epsilon$",
}  # fmt: skip


def written(quantity: str) -> str:
    """Name of a quantity of the exponent table as a formula."""
    return _TEX[quantity]


def explorable(
    K: Sequence[int] = (6, 10, 30, 100, 1000, 10_000, 1_000_000),
    p1: Sequence[float] = (0.2, 0.3, 0.4142, 0.5, 0.8, 0.9),
    eps: Sequence[float] = (0.1, 0.01, 0.001),
    points: int = 60,
    command: str | None = None,
) -> explorables.Explorable:
    """Compute the tables behind the figure with controls for K, p1, eps and the axis.

    Parameters
    ----------
    K : sequence of int
        Numbers of features, at least 3.
    p1 : sequence of float
        Probabilities of the dominant feature, each above 1/K for every K.
    eps : sequence of float
        Targets of the conditional loss; they decide where phase IV ends.
    points : int
        Points per curve, twice: evenly in the score gap and evenly in the logarithm of time.
    command : str, optional
        Shell command that makes the figure again.

    Returns
    -------
    Explorable

    Raises
    ------
    ValueError
        For settings out of range.
    """
    started = time.perf_counter()
    sizes = [_validate.integer("K", k, least=3) for k in K]
    p1 = _validate.reals("p1", p1, above=1 / min(sizes), below=1.0)
    eps = _validate.reals("eps", eps, above=0.0, below=1.0)
    points = _validate.integer("points", points, least=10)
    curves = ("target", "dominant", "rest", "A", "B1", "Bn")
    tables: dict[str, list[Any]] = {name: [] for name in (*curves, "time", "gap", "by_time", "by_gap", "A_T2", "B1_T2")}
    tables |= {name: [] for name in ("I", "II", "III", "IV")}
    for size in sizes:
        for values in tables.values():
            values.append([])
        for p in p1:
            found = _explored(size, p, eps, points)
            for name, values in tables.items():
                values[-1].append(found[name])
    where = ("K", "p1")
    lookups = {name: explorables.Lookup(where, tables[name]) for name in (*curves, "A_T2", "B1_T2")}
    lookups |= {name: explorables.Lookup((*where, "eps"), tables[name]) for name in ("I", "II", "III", "IV")}
    lookups["x"] = explorables.Lookup(("axis", *where), [tables["time"], tables["gap"]])
    lookups["bands"] = explorables.Lookup(("axis", *where, "eps"), [tables["by_time"], tables["by_gap"]])
    series = (
        (("query's feature", "target"), ("dominant feature", "dominant"), ("all others together", "rest")),
        (("A", "A"), ("B\u2081", "B1"), ("Bₙ", "Bn")),
    )
    panels = tuple(
        explorables.Lines(
            title, x="x", x_label="log\u2081\u2080 (η · steps), or gap A \u2212 B\u2081", y_label=label,
            series=tuple(explorables.Series(*one) for one in lines),
            bands="bands", band_labels=("I", "II", "III", "IV"),
        )
        for title, label, lines in (
            ("Attention of an under-represented query", "attention", series[0]),
            ("Its bilinear attention weights", "score", series[1]),
        )
    )  # fmt: skip
    return explorables.Explorable(
        name="four-phases",
        title="Four phases of an under-represented query",
        controls=(
            explorables.Control("K", "Features K", tuple(sizes), tuple(f"{k:,}".replace(",", "\u2009") for k in sizes),
                                start=len(sizes) // 2),
            explorables.Control("p1", "Dominant share p\u2081", tuple(p1), start=len(p1) // 2),
            explorables.Control("eps", "Target ε", tuple(eps), kind="choice"),
            explorables.Control("axis", "Axis", ("time", "gap"), ("logarithm of time", "gap A \u2212 B\u2081"),
                                kind="choice"),
        ),
        panels=panels,
        tables=lookups,
        sentence="K = {K}, p\u2081 = {p1}, ε = {eps}. Of the time up to T\u2084 the phases I, II, III and IV take {I}, "
        "{II}, {III} and {IV} %. At the end of phase II, A = {A_T2} log K and B\u2081 = {B1_T2} log K; the lemma says "
        "at least 0.5, and between \u22120.51 and \u22120.49.",
        provenance=results.provenance(
            {"K": sizes, "p1": p1, "eps": eps, "points": points}, started=started, command=command
        ),
    )  # fmt: skip


def _explored(K: int, p1: float, eps: Sequence[float], points: int) -> dict[str, Any]:
    """Everything :func:`explorable` shows for one K and p1."""
    log_K = math.log(K)
    path, clock = phases.run(log_K, p1, min(eps))
    fine = np.geomspace(0.01, path.end, 2000)
    time_10 = path.log_time(fine) / math.log(10)
    evenly = np.interp(np.linspace(time_10[0], time_10[-1], points), time_10, fine)
    s = np.unique(np.concatenate([evenly, np.linspace(0.01, path.end, points)]))
    at = path.rates(s)

    def short(values: Any) -> list[float]:
        return [float(f"{x:.4g}") for x in np.asarray(values).ravel()]

    found: dict[str, Any] = {
        "target": short(np.exp(at.target)), "dominant": short(np.exp(at.dominant)), "rest": short(np.exp(at.rest)),
        "A": short(path.A(s)), "B1": short(path.B1(s)), "Bn": short(path.Bn(s)),
        # Six digits: at large K the last two phases are that short.
        "time": [float(f"{x:.7g}") for x in path.log_time(s) / math.log(10)], "gap": short(s),
        "A_T2": float(f"{float(path.A(phases.GAP * log_K)) / log_K:.3g}"),
        "B1_T2": float(f"{float(path.B1(phases.GAP * log_K)) / log_K:.3g}"),
        "by_time": [], "by_gap": [], "I": [], "II": [], "III": [], "IV": [],
    }  # fmt: skip
    for e in eps:
        ends = clock | {"T4": path.when_A(phases.target_end(log_K, p1, e))}
        edges = [float(s[0]), *phase_ends(ends)]
        pairs = list(itertools.pairwise(edges))
        found["by_gap"].append([short(pair) for pair in pairs])
        logs = path.log_time(np.array(pairs)) / math.log(10)
        found["by_time"].append([[float(f"{x:.7g}") for x in pair] for pair in logs])
        for name, share in _percentages(path, ends).items():
            found[name].append(float(f"{share:.2g}"))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute and store what takes long: ``python -m icl_core.experiments.convergence_phases``."""
    import argparse
    from pathlib import Path

    parser = argparse.ArgumentParser(prog="python -m icl_core.experiments.convergence_phases", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("book/results"))
    given = parser.parse_args(arguments)
    command = "python -m icl_core.experiments.convergence_phases"
    for name, make in (
        ("orders-sizes", sizes_table),
        ("orders-drift", drift),
        ("orders-finite", finite_prompts),
        ("orders-thresholds", thresholds),
    ):
        print(results.write_table(given.out / name, make(command=command)), flush=True)


if __name__ == "__main__":
    main()
