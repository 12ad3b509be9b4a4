"""The book's own Sphinx extension: each of its parts is a module beside this one."""

import gc
import hashlib
from importlib import import_module
from pathlib import Path

PARTS = (
    "public", "lab", "explorer", "cells", "claims", "evidence", "api", "status",
    "symbols", "addresses", "figures", "html", "bibliography", "code", "proofs",
    "finding", "questions", "teaching", "translate",
)  # fmt: skip


def setup(app):
    """Register the parts of the extension."""
    gc.set_threshold(100_000, 50, 50)  # a build makes many nodes, and keeps them
    # Jupyter Book sets this value for sphinx_comments, which this book does not load.
    app.add_config_value("comments_config", {}, "env")
    for part in PARTS:
        import_module(f"mha_book_{part}").setup(app)
    # Another version of the extension's own source makes Sphinx read every page again.
    here = Path(__file__).parent
    files = sorted([*here.glob("*.py"), *here.parent.glob("_templates/*.*")])
    source = b"".join(path.read_bytes() for path in [*files, here.parent / "ledgers.yml"])
    return {
        "version": "1",
        "env_version": int(hashlib.sha256(source).hexdigest()[:7], 16),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
