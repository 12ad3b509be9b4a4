"""What is wrong between ``book/symbols.yml`` and the chapters: `python book/_tools/symbols.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_symbols import symbol_problems  # noqa: E402

if __name__ == "__main__":
    problems = symbol_problems(ROOT)
    print("\n".join(problems) or "every symbol is declared, once")
    sys.exit(bool(problems))
