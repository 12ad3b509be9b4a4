"""The experiment on memory runs in its short form, and keeps what its processes measured."""

import json

from experiments import head_memory
from mha_book.storage import read_result


def test_the_short_form(tmp_path):
    head_memory.main(["--quick", "--out", str(tmp_path)])
    found = read_result(tmp_path / "head-memory.json")
    names = {f"{what} {n}" for n in (1, 4) for what in ("attention", "scores", "softmax", "values")}
    for kind in ("default", "kept"):
        assert set(found[kind]) == names | {"long attention", "long projections"}
        assert all(len(row["seconds"]) == 2 for row in found[kind].values())


def test_the_pieces_make_up_attention():
    programs = head_memory.programs(head_memory.QUICK)
    run = {name: function(*given) for name, (function, given) in programs.items()}
    q, k, v = programs["attention 4"][1]
    scores = programs["scores 4"][0](q, k) / 2  # heads of width 4
    weights = programs["softmax 4"][0](scores)
    output = programs["values 4"][0](weights, v)
    assert abs(output - run["attention 4"]).max() < 1e-5
    json.dumps(head_memory.QUICK)  # as it is handed to a process
