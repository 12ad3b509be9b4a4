"""Where everything comes from: the lock, the workflows, what others made, how to cite it."""

import itertools
import json
import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.book.test_pages import tool

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def locked(name: str) -> dict[str, str]:
    """Every package of a lock with what stands below it."""
    text = (ROOT / name).read_text(encoding="utf8")
    parts = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    return {part.partition("==")[0] + part.partition(";")[2][:40]: part for part in parts}


@pytest.mark.parametrize("name", ["requirements.txt", "requirements/models.txt"])
def test_the_lock_has_the_hash_of_every_file_and_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf8")
    packages = locked(name)
    assert len(packages) >= 3
    for package, part in packages.items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", part), package
    assert "index-url" not in text
    assert not re.search(r"\bhttps?://|^-e |file:", text, re.M)


def test_the_lock_has_every_package_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    wanted = {
        *project["dependencies"],
        *(x for xs in project["optional-dependencies"].values() for x in xs),
    }
    names = {re.split(r"[<>=!;\[ ]", line)[0].replace("_", "-") for line in wanted}
    pinned = {re.match(r"[\w.-]+", package)[0] for package in locked("requirements.txt")}
    assert names <= pinned, sorted(names - pinned)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_pin_their_actions_and_ask_for_little(path: Path) -> None:
    """An action's tag can be moved; a commit cannot. No permission is left to a default."""
    text = path.read_text(encoding="utf8")
    for line in re.findall(r"uses: (.+)", text):
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}\s+# v\d+(\.\d+)*", line), line
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"].values()
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for job in jobs:
        assert job["timeout-minutes"] <= 60 if "timeout-minutes" in job else "environment" in job
        writes = {name for name, right in job.get("permissions", {}).items() if right == "write"}
        runs_code = any("make " in str(step.get("run")) for step in job["steps"])
        assert not (writes and runs_code), "what may write runs nothing of the repository"
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert "secrets." not in text


def cells(job: dict[str, Any]) -> list[dict[str, str]]:
    """What the matrix of a job runs, a cell with no matrix being one."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    more = matrix.pop("include", [])
    product = [dict(zip(matrix, row, strict=True)) for row in itertools.product(*matrix.values())]
    return more or product


def workflow(name: str) -> dict[str, dict[str, Any]]:
    """The jobs of a workflow."""
    text = (ROOT / ".github/workflows" / f"{name}.yml").read_text(encoding="utf8")
    return yaml.safe_load(text)["jobs"]


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_version_that_is_promised_has_its_job() -> None:
    """Each Python with the oldest JAX that pyproject.toml allows and with that of the lock."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    stated = [c.rpartition(" ")[2] for c in project["classifiers"] if "Python :: 3." in c]
    (bound,) = (line for line in project["dependencies"] if line.startswith("jax>="))
    oldest = f"{bound.removeprefix('jax>=')}.0"
    jobs = workflow("test")
    promised = {(python, jax) for python in stated for jax in (oldest, "")}
    assert len(promised) == 6
    assert {(c["python"], c["jax"]) for c in cells(jobs["versions"])} == promised
    assert commands(jobs["versions"]) == ["make test PYTHON=python JAX=${{ matrix.jax }}"]
    for job, run in {
        "checks": "make book PYTHON=python",
        "slow": "make test-slow PYTHON=python",
    }.items():
        assert [c["python"] for c in cells(jobs[job])] == stated
        assert run in commands(jobs[job])
    for job in jobs.values():
        (setup,) = (s["with"] for s in job["steps"] if "setup-python" in s.get("uses", ""))
        assert setup["python-version"] in ("${{ matrix.python }}", *stated)


def test_every_machine_that_is_promised_has_its_job() -> None:
    job = workflow("test")["machines"]
    assert job["runs-on"] == "${{ matrix.runner }}"
    assert job["env"] == {"XLA_FLAGS": "${{ matrix.flags }}"}
    assert commands(job) == ["${{ matrix.before }} make test PYTHON=python"]
    rows = {cell["machine"]: cell for cell in cells(job)}
    assert rows["one core"]["before"] == "taskset -c 0"
    assert rows["AVX2"]["flags"] == "--xla_cpu_max_isa=AVX2"
    assert rows["ARM"]["runner"].endswith("-arm")
    assert len(rows) == 3


def test_only_what_is_not_out_yet_may_fail() -> None:
    jobs = workflow("test")
    assert [name for name, job in jobs.items() if job.get("continue-on-error")] == ["nightly"]
    assert commands(jobs["nightly"]) == ["make test PYTHON=python JAX=nightly"]
    assert all(job["timeout-minutes"] <= 60 for job in jobs.values())
    assert not any(job["strategy"]["fail-fast"] for job in jobs.values() if "strategy" in job)


# --- the canary -----------------------------------------------------------------------------------

CANARY = tool("canary")
ENVIRONMENT = tool("environment")


def test_every_group_has_its_job_each_week() -> None:
    job = workflow("canary")["newest"]
    assert {cell["group"] for cell in cells(job)} == set(CANARY.groups())
    assert commands(job) == ["make canary PYTHON=python GROUP=${{ matrix.group }}"]
    assert "${{ matrix.group }}" in job["name"]
    text = (ROOT / ".github/workflows/canary.yml").read_text(encoding="utf8")
    assert re.search(r'cron: "\d+ \d+ \* \* \d"', text)


def test_a_group_takes_the_newest_of_its_own_packages() -> None:
    assert CANARY.command("notation")[:2] == ["--upgrade-package", "matplotlib"]
    assert "opt_einsum>=3.4" in CANARY.command("notation")
    bounds = [word for word in CANARY.command("sphinx") if re.search("[<=>]", word)]
    assert bounds == [], "the lock's Sphinx is what jupyter-book asks for"
    whole = CANARY.command("everything")
    assert whole[0] == "--upgrade"
    assert {line for lines in CANARY.groups().values() for line in lines} - {*CANARY.SPHINX} <= {
        *whole
    }
    assert all(CANARY.checks(group) for group in CANARY.groups())


def test_what_changed_since_the_lock_is_named() -> None:
    before, after = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "2.1", "d": "4"}
    assert CANARY.changes(before, after) == ["  b 2 -> 2.1", "  c 3 -> -", "  d - -> 4"]


def test_an_environment_is_of_one_version_of_jax() -> None:
    """Another one is another environment: `make` builds it anew, and so back."""
    stamps = [ENVIRONMENT.wanted(jax) for jax in ("", "0.10.0", "0.10.2", "nightly")]
    assert len(set(stamps)) == 4
    assert ENVIRONMENT.another_jax("0.10.0")[:2] == ["jax==0.10.0", "jaxlib==0.10.0"]
    assert "allow" in ENVIRONMENT.another_jax("nightly")
    makefile = (ROOT / "Makefile").read_text(encoding="utf8")
    assert "environment.py --venv $(VENV) $(if $(JAX),--jax $(JAX))" in makefile


# --- how to cite it ------------------------------------------------------------------------------


def test_citation_fits_its_standard() -> None:
    schema = json.loads((ROOT / "tests/data/citation-1.2.0.schema.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    jsonschema.Draft7Validator(schema).validate(citation)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**citation, "license": "free"})


def test_one_title_author_version_and_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    archive = json.loads((ROOT / ".zenodo.json").read_text(encoding="utf8"))
    assert citation["version"] == project["version"]
    assert citation["title"] == archive["title"]
    assert citation["license"] == project["license"] == archive["license"]
    assert citation["authors"] == project["authors"] == archive["creators"]
    assert citation["keywords"] == archive["keywords"]


# --- what others made -----------------------------------------------------------------------------


def third_party() -> list[list[str]]:
    """The rows of the table: what, where, from which package, licence."""
    text = (ROOT / ".github" / "THIRD-PARTY.md").read_text(encoding="utf8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return rows[1:]


SAME = {  # how a package's own metadata says it
    "MIT": r"\bMIT\b", "Apache-2.0": r"Apache", "BSD-3-Clause": r"BSD", "BSD-2-Clause": r"BSD",
}  # fmt: skip


@pytest.mark.parametrize("row", third_party(), ids=lambda row: row[0])
def test_licences_are_those_that_the_packages_state(row: list[str]) -> None:
    _, places, package, licence = row
    assert re.findall(r"`([^`]+)`", places)
    try:
        stated = metadata(package)
    except PackageNotFoundError:
        pytest.fail(f"{package} is not installed: it brings nothing")
    said = " ".join(
        [stated.get("License-Expression", ""), stated.get("License", "") or ""]
        + [c for c in stated.get_all("Classifier") or [] if c.startswith("License")]
    )
    if package != "pydata-sphinx-theme":  # it brings what others made
        assert re.search(SAME[licence], said), said


def test_what_is_vendored_has_its_licence() -> None:
    """Every folder of ``vendor`` holds one, and the table names it."""
    text = (ROOT / ".github" / "THIRD-PARTY.md").read_text(encoding="utf8")
    for path in sorted((ROOT / "book/_static").glob("vendor/*")):
        if path.is_dir():
            assert [*path.glob("*LICEN[CS]E*")], f"{path.name} lacks its licence"
        assert path.stem.split(".")[0].lower() in text.lower(), f"{path.name} is not in the table"


@pytest.mark.slow
def test_nothing_else_of_others_is_in_the_built_book(built_book: Path) -> None:
    """What the build put into ``_static`` is ours, or stands in the table."""
    places = [place for row in third_party() for place in re.findall(r"`([^`]+)`", row[1])]
    ours = {path.name for path in (ROOT / "book/_static").iterdir()}
    made = {"documentation_options.js", "language_data.js", "moved.js", "locales", "images"}
    small = re.compile(r".*(\.png|\.svg|macros\.html|togglebutton\.css|copybutton.*|highlight\.js)")
    missing = []
    for path in sorted((built_book / "_static").iterdir()):
        if path.name in ours | made or small.fullmatch(path.name):
            continue
        inside = [path, *path.iterdir()] if path.is_dir() else [path]
        relative = [item.relative_to(built_book) for item in inside]
        if not any(item.match(place) or place.startswith(f"{item}/")
                   for item in relative for place in places):  # fmt: skip
            missing.append(path.name)
    assert not missing, f"not in THIRD-PARTY.md: {missing}"


def test_the_table_names_what_the_build_brings() -> None:
    assert len(third_party()) >= 10
    assert {"MathJax", "Font Awesome Free"} <= {row[0] for row in third_party()}
