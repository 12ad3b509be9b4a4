"""The book's own Sphinx extension: claims, evidence, equations, symbols, API, status, HTML.

Directives: ``:::{claim} C16`` in a chapter, one line for the claim; on the pages of the back matter
``{claims-ledger}``, ``{claims-evidence}``, ``{equation-rigour}``,
``{symbol-table}``, ``{api-reference}``, ``{api-module}``, ``{figure-list}``, ``{exercise-list}``,
``{claims-count}``, ``{chapter-table}`` and ``{locked-versions}``; ``:::{lab} NAME`` puts a small
laboratory on a page.
"""

import hashlib
from pathlib import Path

import mha_book_addresses
import mha_book_api
import mha_book_bibliography
import mha_book_cells
import mha_book_claims
import mha_book_code
import mha_book_evidence
import mha_book_explorer
import mha_book_figures
import mha_book_finding
import mha_book_html
import mha_book_lab
import mha_book_public
import mha_book_rigour
import mha_book_share
import mha_book_status
import mha_book_symbols


def setup(app):
    """Register the parts of the extension."""
    # Jupyter Book sets this value for sphinx_comments, which this book does not load.
    app.add_config_value("comments_config", {}, "env")
    parts = (
        mha_book_public, mha_book_lab, mha_book_explorer, mha_book_cells, mha_book_claims,
        mha_book_evidence, mha_book_api, mha_book_status, mha_book_rigour,
        mha_book_symbols, mha_book_addresses, mha_book_figures, mha_book_html, mha_book_share,
        mha_book_bibliography, mha_book_code, mha_book_finding,
    )  # fmt: skip
    for part in parts:
        part.setup(app)
    # Another version of the extension's own source makes Sphinx read every page again.
    here = Path(__file__).parent
    files = [
        *here.glob("*.py"),
        *here.parent.glob("_templates/*.html"),
        here.parent / "ledgers.yml",
    ]
    source = b"".join(path.read_bytes() for path in sorted(files))
    return {
        "version": "1",
        "env_version": int(hashlib.sha256(source).hexdigest()[:7], 16),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
    }
