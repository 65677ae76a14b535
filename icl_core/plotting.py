"""The one figure style: sizes, fonts and a palette that colour-blind readers can tell apart."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette, the darkest first; yellow is left out, it is too faint for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))


def style() -> dict[str, Any]:
    """Return the ``matplotlib.rcParams`` of every figure of the book."""
    from cycler import cycler

    return {
        "figure.figsize": (6.4, 3.8),
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#DDDDDD",
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.8,
        "legend.frameon": False,
        "axes.prop_cycle": cycler(color=list(COLORS)) + cycler(linestyle=list(LINES)),
        "svg.hashsalt": "icl-core",
        "image.cmap": "cividis",
    }


def use_style() -> None:
    """Apply :func:`style` to matplotlib, and make notebooks show reproducible SVG."""
    import matplotlib as mpl

    mpl.rcParams.update(style())
    try:
        from IPython.core.getipython import get_ipython
        from matplotlib_inline.backend_inline import set_matplotlib_formats
    except ImportError:
        return
    if get_ipython() is not None:
        set_matplotlib_formats("svg", metadata={"Date": None})
