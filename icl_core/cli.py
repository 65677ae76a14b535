"""The command ``icl-core``: run chapters, build the book, verify the claims, measure a shift."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from icl_core import chapters

EXAMPLES = """
examples:
  icl-core list                               the chapters and their parameters
  icl-core run ood -p K=4 -p eps=0.01         run a chapter with values of your own
  icl-core run ood --profile smoke            the same chapter, small
  icl-core book                               run all chapters, build the pages
  icl-core verify --fast                      check the claims of both papers, quickly
  icl-core show ood.thm-5.1.loss              one claim's record in full
  icl-core shift V.npy U.npy -o mine          what a shift from features V to U does
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    from icl_core import __version__

    top = argparse.ArgumentParser(
        prog="icl-core",
        description="Exact dynamics of in-context learning in softmax attention: chapters, book and checked claims.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"icl-core {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    profile = argparse.ArgumentParser(add_help=False)
    profile.add_argument(
        "--profile",
        default="book",
        metavar="|".join(chapters.PROFILES),
        help="how large: smoke, book (default) or full",
    )

    one = commands.add_parser(
        "run", parents=[profile], allow_abbrev=False, help="run one chapter, with parameters of your own if you like"
    )
    one.add_argument("chapter", help="its name, as `icl-core list` gives it")
    one.add_argument(
        "-p",
        dest="pairs",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a parameter; --NAME VALUE does it too",
    )
    one.add_argument("-o", dest="output", type=Path, metavar="FILE.ipynb", help="also copy the executed notebook here")
    one.add_argument("--force", action="store_true", help="run it even if nothing has changed")
    one.set_defaults(do=_run)

    whole = commands.add_parser("book", parents=[profile], help="run every chapter that needs it and build the pages")
    whole.add_argument(
        "--force", nargs="*", metavar="CHAPTER", help="run these chapters even if nothing has changed; none named: all"
    )
    whole.add_argument("--jobs", type=int, metavar="N", help="chapters run at a time (default: 2, or 1 on one core)")
    whole.set_defaults(do=_book)

    known = commands.add_parser("list", parents=[profile], help="list the chapters and their parameters")
    known.set_defaults(do=_list)

    staged = commands.add_parser("stage", help="write a chapter as a plain notebook, for papermill or Jupyter")
    staged.add_argument("chapter")
    staged.add_argument(
        "-o", dest="output", type=Path, metavar="FILE.ipynb", help="default: _build/notebooks/CHAPTER.ipynb"
    )
    staged.set_defaults(do=_stage)

    ledger = commands.add_parser("verify", help="check the claims of both papers")
    ledger.add_argument("ids", nargs="*", metavar="ID", help="claims, or beginnings of their ids (default: all)")
    ledger.add_argument("--fast", action="store_true", help="the quick form, under two minutes on two cores")
    ledger.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts and the evidence here")
    ledger.set_defaults(do=_verify)

    record = commands.add_parser("show", help="print one claim's record in full")
    record.add_argument("id", metavar="ID")
    record.set_defaults(do=_show)

    own = commands.add_parser("shift", help="measure what a shift from your features V to your features U does")
    own.add_argument("V", type=Path, help=".npy file of shape (d, K): the training features, as columns")
    own.add_argument("U", type=Path, help=".npy file of the same shape: the OOD features")
    own.add_argument("--eps", type=float, default=0.01, help="target of the total loss (default 0.01)")
    own.add_argument("--eta", type=float, default=0.1, help="step size (default 0.1)")
    own.add_argument("--orthonormal", action="store_true", help="refuse sets that are not orthonormal")
    own.add_argument("-o", dest="output", type=Path, metavar="NAME", help="also write NAME.svg, NAME.csv and NAME.json")
    own.set_defaults(do=_shift)
    return top


def _run(args: argparse.Namespace) -> int:
    root = chapters.find_root()
    chapter = chapters.find(root, args.chapter)
    job = chapters.plan(root, chapter, args.profile, chapters.assignments(args.pairs), force=args.force)
    good = chapters.run(root, [job])
    if good:
        if args.output is not None:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_bytes(job.output.read_bytes())
        print(f"executed notebook: {args.output or os.path.relpath(job.output)}")
    return 0 if good else 1


def _long_options(rest: Sequence[str]) -> list[str]:
    """Read ``--some-name value`` and ``--some-name=value`` as settings of a chapter's parameters.

    >>> _long_options(["--mrpc-dir", "data/mrpc", "--runs=2"])
    ['mrpc_dir=data/mrpc', 'runs=2']
    """
    pairs, left = [], list(rest)
    while left:
        option = left.pop(0)
        name, equals, value = option.partition("=")
        if not name.startswith("--") or len(name) < 3 or (not equals and not left):
            raise ValueError(f"a parameter is given as --name value or -p name=value, got {option!r}")
        pairs.append(f"{name[2:].replace('-', '_')}={value if equals else left.pop(0)}")
    return pairs


def _book(args: argparse.Namespace) -> int:
    if args.jobs is not None and args.jobs < 1:
        raise ValueError(f"--jobs must be an integer >= 1, got {args.jobs}")
    index = chapters.book(chapters.find_root(), args.profile, workers=args.jobs, force=args.force)
    if index is None:
        return 1
    print(f"open {index}")
    return 0


def _list(args: argparse.Namespace) -> int:
    root = chapters.find_root()
    for path in chapters.chapter_paths(root).values():
        chapter = chapters.load(path)
        chosen = chapters.values(chapter, args.profile)
        print(chapter.name, *(f"{name}={value!r}" for name, value in chosen.items()), sep="  ")
    return 0


def _stage(args: argparse.Namespace) -> int:
    root = chapters.find_root()
    chapter = chapters.find(root, args.chapter)
    target = args.output or root / "_build" / "notebooks" / f"{chapter.name}.ipynb"
    print(chapters.plain_notebook(chapter, target))
    return 0


def _verify(args: argparse.Namespace) -> int:
    from icl_core.claims import runner

    return int(runner.main_verify(args) or 0)


def _show(args: argparse.Namespace) -> int:
    from icl_core.claims import runner

    return int(runner.main_show(args.id) or 0)


def _shift(args: argparse.Namespace) -> int:
    from icl_core import dynamics, results
    from icl_core.experiments import shift

    try:
        found = shift.shift(args.V, args.U, eps=args.eps, eta=args.eta, require_orthonormal=args.orthonormal)
    except dynamics.ConvergenceError as fault:
        print(f"icl-core: {fault}", file=sys.stderr)
        return 1
    print(shift.report(found))
    if args.output is not None:
        results.write_table(args.output, found.table)
        picture = args.output.with_suffix(".svg")
        shift.figure(found).savefig(picture)
        print(f"\nfigure: {picture}, table: {picture.with_suffix('.csv')}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns
    -------
    int
        0 done, 1 something failed, 2 a wrong argument, 130 interrupted.
    """
    top = parser()
    args, rest = top.parse_known_args(argv)
    if rest and args.command != "run":
        top.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        if rest:
            args.pairs += _long_options(rest)
        return int(args.do(args))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away; Python would complain again when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, FileNotFoundError) as fault:
        print(f"icl-core: {fault}", file=sys.stderr)
        return 2
    except chapters.BuildError as fault:
        print(f"icl-core: {fault}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as fault:
        if fault.name and fault.name.split(".")[0] == "icl_core":
            raise
        print(f'icl-core: {args.command} needs {fault.name}: pip install "icl-core[book]"', file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
