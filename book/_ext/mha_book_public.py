"""Where the book is public: one setting, and every address that is made from it.

``CITATION.cff`` has the keys of its standard for it, ``repository-code`` and ``url``; the variables
MHA_BOOK_REPOSITORY and MHA_BOOK_SITE go before them, so that a workflow publishes a copy under the
addresses of that copy. Where there is none, no page shows a link that would need one.

* the repository, on GitHub or GitLab: the buttons of the theme (repository, issues, edit, Binder,
  Colab) and links to files;
* the site: canonical addresses, Open Graph, ``sitemap.xml``.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mha_book_toc import read

REPOSITORY, SITE = "MHA_BOOK_REPOSITORY", "MHA_BOOK_SITE"
BRANCH = "main"
_REPOSITORY = re.compile(r"https://(github|gitlab)\.com/[\w.-]+/[\w.-]+")
_SITE = re.compile(r"https://[\w.-]+(?:/[\w.~-]+)*/")


class Public(NamedTuple):
    """The public addresses; empty where there is none."""

    repository: str = ""  # https://github.com/<owner>/<name>, without a slash at the end
    site: str = ""  # the folder of the built pages, with a slash at the end


def read_public(root: Path, environ: Mapping[str, str] = os.environ) -> Public:
    """Return the addresses that the variables name, or else ``CITATION.cff``; they are checked."""
    citation = read(root / "CITATION.cff")
    repository = environ.get(REPOSITORY) or citation.get("repository-code") or ""
    repository = repository.rstrip("/").removesuffix(".git")
    site = environ.get(SITE) or citation.get("url") or ""
    site = site and site.rstrip("/") + "/"
    for name, address, known, expected in (
        (f"{REPOSITORY}, or repository-code", repository, _REPOSITORY,
         "https://github.com/<owner>/<name> or on gitlab.com"),
        (f"{SITE}, or url", site, _SITE, "https://<host>/<folder>/"),
    ):  # fmt: skip
        if address and not known.fullmatch(address):
            raise ValueError(f"{name} in CITATION.cff: expected {expected}, got {address!r}")
    return Public(repository, site)


def theme_options(public: Public) -> dict[str, Any]:
    """Return the options of the theme that lead to the repository; none where there is none."""
    if not public.repository:
        return {}
    launch = {"notebook_interface": "jupyterlab", "binderhub_url": "https://mybinder.org"}
    if public.repository.startswith("https://github.com/"):  # Colab opens files of no other host
        launch["colab_url"] = "https://colab.research.google.com"
    return {
        "repository_url": public.repository,
        "repository_branch": BRANCH,
        "use_repository_button": True,
        "use_issues_button": True,
        "use_edit_page_button": True,
        "launch_buttons": launch,
    }


def configure(app, config) -> None:
    """Put the addresses where Sphinx and the theme look for them."""
    public = read_public(Path(app.srcdir))
    config.mha_book_public = [*public]
    config.html_theme_options = {**config.html_theme_options, **theme_options(public)}
    config.html_baseurl = public.site


def setup(app):
    """Register the setting: another address makes Sphinx read every page again."""
    app.add_config_value("mha_book_public", [], "env", [list])
    app.connect("config-inited", configure, priority=100)  # before the theme's own
