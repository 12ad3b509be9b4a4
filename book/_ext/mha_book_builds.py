"""Which pages are read again, beyond those that Sphinx finds changed.

Sphinx compares times: a page is read again if its source is newer than the last reading, and
written again if it is newer than the page. Two things deceive it, and after either all pages are
read. A build that was killed leaves pages half-written, or of before, that are newer than their
sources: ``.complete``, which ``make book`` puts beside the pages of a build that ended well, goes
when the next one begins. A clock that was set back makes new sources older than the last reading.
"""

import time
from pathlib import Path

from sphinx.util.logging import getLogger

logger = getLogger(__name__)
MARK = ".complete"


def outdated(app, env, added, changed, removed):
    """Return all pages where times cannot be trusted, or none more than Sphinx itself."""
    if app.builder.name != "html":
        return ()
    mark = Path(app.outdir) / MARK
    is_complete = mark.exists()
    mark.unlink(missing_ok=True)
    if not env.all_docs:  # all are read anyhow
        return ()
    if not is_complete:
        logger.info("the last build did not end: all pages are read again")
        return env.found_docs
    if max(env.all_docs.values()) > time.time_ns() // 1000:
        logger.info("the clock was set back since the last build: all pages are read again")
        return env.found_docs
    return ()


def setup(app):
    """Look before pages are read."""
    app.connect("env-get-outdated", outdated)
