"""What builds and tools leave when they are stopped, or when the clock was moved."""

import io
import os
import subprocess
import sys
import time

import pytest
from sphinx.application import Sphinx

from tests import conftest
from tests.book.extensions import tool

DAY = 86400


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A book of two pages, and a function that builds it as `make book` does."""
    monkeypatch.syspath_prepend(conftest.ROOT / "book" / "_ext")
    (tmp_path / "conf.py").write_text("extensions = ['mha_book_builds']\n")
    (tmp_path / "index.rst").write_text("Rain\n====\n\n.. toctree::\n\n   snow\n")
    (tmp_path / "snow.rst").write_text("Snow\n====\n\nIt is white.\n")
    page, mark = tmp_path / "out" / "snow.html", tmp_path / "out" / ".complete"

    def build() -> str:
        said = io.StringIO()
        app = Sphinx(
            tmp_path, tmp_path, tmp_path / "out", tmp_path / "trees", "html",
            status=said, warning=io.StringIO(),
        )  # fmt: skip
        assert app.extensions.keys() >= {"mha_book_builds"}
        app.build()
        mark.touch()
        return said.getvalue()

    build()
    return tmp_path, page, build


def test_a_build_that_ended_is_no_reason_to_read_all_again(book):
    _, page, build = book
    before = page.stat().st_mtime_ns
    assert "0 added, 0 changed" in build()
    assert page.stat().st_mtime_ns == before


def test_after_a_build_that_was_killed_no_page_stays_half_written(book):
    folder, page, build = book
    whole = page.read_text()
    page.write_text(whole[:500])  # newer than its source: times alone say that it is done
    (folder / "out" / ".complete").unlink()
    assert "the last build did not end" in build()
    assert page.read_text() == whole


def test_a_source_changed_after_the_clock_was_set_back_is_read(book, monkeypatch):
    folder, page, build = book
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - DAY * 10**9)
    (folder / "snow.rst").write_text("Snow\n====\n\nIt melts.\n")
    earlier = time.time() - DAY
    os.utime(folder / "snow.rst", (earlier, earlier))
    assert "the clock was set back" in build()
    assert "It melts" in page.read_text()


def test_the_environment_goes_by_content_and_not_by_time(tmp_path, monkeypatch):
    environment = tool("environment")
    built = []
    monkeypatch.setattr(environment, "build", lambda *given: built.append(given))
    monkeypatch.setattr(sys, "argv", ["environment.py", "--venv", str(tmp_path)])
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch()
    stamp = tmp_path / environment.STAMP
    for when in (0, time.time() - 365 * DAY, time.time() + 365 * DAY):
        stamp.write_text(environment.wanted())
        os.utime(stamp, (when, when))
        environment.main()
    assert not built
    stamp.write_text(environment.wanted()[:-9])  # a process that wrote it was killed
    environment.main()
    assert len(built) == 1


@pytest.mark.skipif(os.name != "posix", reason="Windows has a handle on the parent")
def test_a_kernel_whose_parent_died_before_it_stood_ends(tmp_path):
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", str(tmp_path / "kernel.json")]
    command += tool("refresh").KERNEL_ARGUMENTS
    environ = {**os.environ, "JPY_PARENT_PID": str(2**22)}  # more than any process has
    assert subprocess.run(command, env=environ, capture_output=True, timeout=60).returncode == 1
