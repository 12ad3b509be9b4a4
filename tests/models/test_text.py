"""The State of the Union text: whole, in order, split by year without overlap, verified."""

import pytest

from mha_book.models import text


@pytest.mark.needs_models
def test_the_addresses_are_whole_and_in_order():
    speeches = text.load_speeches()
    assert len(speeches) == 249
    years = [speech.year for speech in speeches]
    assert years == sorted(years)
    assert (years[0], years[-1]) == (1790, 2026)
    assert all(len(speech.text) > 1000 for speech in speeches)
    assert speeches[0].president == "Washington"


@pytest.mark.needs_models
def test_the_parts_share_no_year_and_leave_nothing_out():
    parts = {part: text.load_speeches(part) for part in text.SPLITS}
    years = {part: {speech.year for speech in parts[part]} for part in text.SPLITS}
    assert not years["train"] & years["validation"]
    assert not years["train"] & years["test"]
    assert not years["validation"] & years["test"]
    assert sum(map(len, parts.values())) == len(text.load_speeches())
    assert {year % 10 for year in years["validation"]} == {5}
    assert {year % 10 for year in years["test"]} == {0}


def test_altered_text_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "speeches"
    folder.mkdir(parents=True)
    (folder / "1862-Lincoln-1.txt").write_text("Fellow-citizens", encoding="utf8")
    monkeypatch.setattr(text, "find_package", lambda package: tmp_path)
    with pytest.raises(ValueError, match=r"sha256 of .*speeches: expected"):
        text.load_speeches()
