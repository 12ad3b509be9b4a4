"""The modules of the book's Sphinx extension, which is no installed package, for the tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

import mha_book_addresses as addresses  # noqa: E402
import mha_book_api as api  # noqa: E402
import mha_book_bibliography as bibliography  # noqa: E402
import mha_book_code as code  # noqa: E402
import mha_book_equations as equations  # noqa: E402
import mha_book_evidence as evidence  # noqa: E402
import mha_book_explorer as explorer  # noqa: E402
import mha_book_figures as figures  # noqa: E402
import mha_book_finding as finding  # noqa: E402
import mha_book_html as page_html  # noqa: E402
import mha_book_lab as lab  # noqa: E402
import mha_book_ledger as ledger  # noqa: E402
import mha_book_modules as modules  # noqa: E402
import mha_book_pages as pages  # noqa: E402
import mha_book_public as public  # noqa: E402
import mha_book_rigour as rigour  # noqa: E402
import mha_book_share as share  # noqa: E402
import mha_book_status as status  # noqa: E402
import mha_book_symbols as symbols  # noqa: E402
import mha_book_toc as toc  # noqa: E402

__all__ = [
    "ROOT",
    "addresses",
    "api",
    "bibliography",
    "code",
    "equations",
    "evidence",
    "explorer",
    "figures",
    "finding",
    "lab",
    "ledger",
    "modules",
    "page_html",
    "pages",
    "public",
    "rigour",
    "share",
    "status",
    "symbols",
    "toc",
]
