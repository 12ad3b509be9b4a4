"""The paper for JOSE cites what its bibliography has; the metadata of a release agree."""

import json
import re
import tomllib

import yaml

from tests.book import gates

PAPER = (gates.ROOT / "paper" / "paper.md").read_text("utf8")


def entries(path):
    text = (gates.ROOT / path).read_text("utf8")
    found = re.findall(r"^@\w+\{([^,]+),(.*?)^\}$", text, re.DOTALL | re.MULTILINE)
    return {key: re.sub(r"\s+", " ", body) for key, body in found}


def test_citations_of_the_paper():
    paper, book = entries("paper/paper.bib"), entries("book/references.bib")
    assert set(re.findall(r"@([a-z]+\d{4}\w*)", PAPER)) == set(paper)
    assert all(paper[key] == book[key] for key in paper.keys() & book.keys())


def test_metadata_agree():
    project = tomllib.loads((gates.ROOT / "pyproject.toml").read_text("utf8"))["project"]
    cff = yaml.safe_load((gates.ROOT / "CITATION.cff").read_text("utf8"))
    meta = json.loads((gates.ROOT / "codemeta.json").read_text("utf8"))
    head = yaml.safe_load(PAPER.split("---")[1])
    assert cff["title"] == meta["name"] == head["title"]
    assert str(cff["version"]) == meta["version"] == project["version"]
    assert meta["license"].endswith(cff["license"])
    names = {author["name"] for author in cff["authors"]}
    assert names == {author["name"] for author in [*head["authors"], *meta["author"]]}
