"""Plant defects and count which of them the tests notice.

``python -m tests.defects [AREA …] [--only ID] [--revision REVISION] [--json FILE]``
"""

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from tests.defects import copied, load, plant


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("areas", nargs="*")
    parser.add_argument("--only", action="append", default=[], metavar="ID")
    parser.add_argument("--revision", metavar="REVISION", help="plant them in that one")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    with copied(options.revision) as place:
        for defect in load(options.areas):
            if options.only and defect.id not in options.only:
                continue
            start = time.monotonic()
            verdict = plant(defect, place)
            rows.append({"id": defect.id, "status": verdict.status, "by": verdict.by})
            seconds = time.monotonic() - start
            print(f"{verdict.status:7} {defect.id:40} {seconds:5.1f} s  {verdict.by}", flush=True)
    counts = Counter(row["status"] for row in rows)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if set(counts) <= {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())
