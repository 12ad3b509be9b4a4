"""What other libraries make of models and layers, stored for the tests and the book."""

import json
from pathlib import Path
from typing import Any

from benchmarks.harness.provenance import record
from mha_book.storage import seal


def store(path: Path, module: str, seeds: str, facts: dict[str, Any]) -> None:
    """Write facts of torch and transformers with where they come from, a line for each row."""
    import torch
    import transformers

    packages = {"torch": torch.__version__, "transformers": transformers.__version__}
    provenance = {**record(seeds), "command": f"python -m {module}", "packages": packages}
    parts = []
    for name, value in seal({"provenance": provenance, **facts}).items():
        rows = value if isinstance(value, list) else []
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        parts.append(
            f" {json.dumps(name)}: " + (f"[\n  {lines}\n ]" if rows else json.dumps(value))
        )
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf8")
