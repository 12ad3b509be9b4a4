"""Where everything comes from: the lock, the workflows, what others made, how to cite it."""

import json
import re
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[1]


# --- how to cite it ------------------------------------------------------------------------------


def test_citation_fits_its_standard() -> None:
    schema = json.loads((ROOT / "tests/data/citation-1.2.0.schema.json").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    jsonschema.Draft7Validator(schema).validate(citation)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate({**citation, "license": "free"})


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
