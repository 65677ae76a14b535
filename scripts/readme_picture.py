"""Write book/_static/readme.svg, the README's picture: one figure of an executed chapter, counted from 1.

icl-core run ood-generalisation && python scripts/readme_picture.py _build/chapters/book/ood-generalisation.ipynb 4
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parent.parent / "book" / "_static" / "readme.svg"


def main() -> int:
    """Copy the figure."""
    notebook = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    pictures = [data["image/svg+xml"] for data in outputs if "image/svg+xml" in data]
    number = int(sys.argv[2])
    if not 1 <= number <= len(pictures):
        print(f"{sys.argv[1]} shows {len(pictures)} SVG figures, so there is no figure {number}", file=sys.stderr)
        return 2
    TARGET.write_text("".join(pictures[number - 1]), encoding="utf-8")
    print(TARGET)
    return 0


if __name__ == "__main__":
    sys.exit(main())
