"""What ``papers.json`` tells the ledger of papers: its numbers in words, from its own arrays.

Means over texts with 95% intervals, Student's.
"""

from typing import Any

import numpy as np

from experiments.shared import slug
from mha_book.specialization.intervals import mean_interval

GROUP = 3  # query heads of SmolLM2 that share a key head


def interval(values: Any) -> tuple[float, float, float]:
    middle, half = mean_interval(values)
    return middle, middle - half, middle + half


def _nats(values: Any, digits: int = 2) -> str:
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*interval(values), d=digits)


def _percent(values: Any) -> str:
    return "{:.0f}% [{:.0f}, {:.0f}]".format(*(100 * x for x in interval(values)))


def told(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    parts = (_heads, _keys, _scores, _merged, _virtual, _directions, _orders, _retrieving)
    return {name: text for part in parts for name, text in part(found, sizes).items()}


def _heads(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    runs = found["heads of a token"]
    whole = np.array(runs["whole"])
    names = [name for name in runs if name != "whole"]
    return {f"heads-{n.replace(' ', '-')}": _nats(np.array(runs[n]) - whole) for n in names}


def _keys(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    runs, out = found["keys of a query"], {}
    for name, key in (("held", "recalled"), ("rest", "recalled of the rest")):
        shares = np.array(runs[key]).mean((1, 4))  # texts, ways, counts
        for w, way in enumerate(runs["losses"]):
            for c, count in enumerate(sizes.keys):
                out[f"keys-{name}-{way}-{count}"] = _percent(shares[:, w, c])
    loss = np.array(runs["loss"])
    for way, of_way in runs["losses"].items():
        out[f"keys-loss-{way}"] = _nats(np.array(of_way) - loss, 3)
    layer, own = (np.array(runs["losses"][way]) for way in ("layer", "own"))
    out["keys-loss-layer-own"] = _nats(layer - own, 3)
    same, other = agreements(np.array(runs["agreement"]))
    out |= {"keys-agree-group": _percent(same), "keys-agree-other": _percent(other)}
    out["keys-agree-more"] = f"{100 * (same - other).mean():.1f}"
    out |= {"keys-from": str(sizes.longer // 2 + 1), "keys-to": str(sizes.longer)}
    out["keys-count"] = str(sizes.keys[len(sizes.keys) // 2])
    return out


def agreements(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    group = np.arange(found.shape[-1]) // GROUP
    same = group[:, None] == group[None, :]
    of_group, of_others = same & ~np.eye(len(group), dtype=bool), ~same
    return found[..., of_group].mean((1, 2)), found[..., of_others].mean((1, 2))


def _scores(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    out = {}
    for model, runs in (("smollm2", found["keys of a query"]), ("minilm", found["of minilm"])):
        largest = np.array(runs["largest"]).max(0)  # of each head
        out[f"scores-{model}-largest"] = f"{largest.max():.0f}"
        out[f"scores-{model}-median"] = f"{np.median(largest):.0f}"
        out[f"scores-{model}-above"] = str(int((largest > 100).sum()))
        out[f"scores-{model}-heads"] = str(largest.size)
        out[f"scores-{model}-untrained"] = f"{np.max(runs['largest, untrained']):.0f}"
    return out


def _merged(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    runs, out = found["merged"], {}
    whole = np.array(runs["whole"])
    for way in ("plain", "aligned", "turned at random", "aligned, not merged"):
        out[f"merged-{slug(way)}"] = _nats(np.array(runs[way]) - whole)
    out["merged-gain"] = _nats(np.array(runs["plain"]) - np.array(runs["aligned"]))
    cosines = found["of minilm"]["cosines"]
    for name, values in cosines.items():
        out[f"minilm-{slug(name)}"] = _nats(values)
    for groups in sizes.minilm_groups:
        better = np.array(cosines[f"aligned {groups}"]) > np.array(cosines[f"plain {groups}"])
        out[f"minilm-better-{groups}"] = f"{better.sum()} of {better.size}"
    return out


def _virtual(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    return {
        f"virtual-{kind}-{groups}": f"{100 * np.mean(shares):.0f}%"
        for kind, of_kind in found["of minilm"]["held"].items()
        for groups, shares in of_kind.items()
    }


def _directions(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    out = {"rank-all": str(GROUP * 64), "rank-share": "90%"}
    for kind, key in (("", "directions"), ("-untrained", "directions, untrained")):
        rows = found["keys of a query"][key]
        for name in ("key", "rotated", "value"):
            low, middle, high = np.percentile(rows[name], [0, 50, 100])
            out[f"rank-{name}{kind}"] = f"{middle:.0f} ({low:.0f} to {high:.0f})"
        low, middle, high = (100 * x for x in np.percentile(rows["half of both"], [0, 50, 100]))
        out[f"rank-both{kind}"] = f"{middle:.1f}% ({low:.1f} to {high:.1f})"
    return out


def _orders(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    runs = found["entropy orders"]
    out = {f"orders-{n}": f"{s:.0%}" for n, s in zip(("few", "many"), sizes.removed, strict=False)}
    for name in runs:
        way, share = name.rsplit(" ", 1)
        if way != "importance":
            more = np.array(runs[name]) - np.array(runs[f"importance {share}"])
            out[f"orders-{slug(way)}-{float(share):.0%}".rstrip("%")] = _nats(more)
    return out


def _retrieving(found: dict[str, Any], sizes: Any) -> dict[str, str]:
    runs = found["retrieving"]
    score, again = (np.array(runs[n]) for n in ("score", "score on the others"))
    with np.errstate(invalid="ignore"):  # in the short form all scores may be zero
        alike = np.corrcoef(score.ravel(), again.ravel())[0, 1]
    out = {
        "retrieve-heads": str(len(runs["heads"])),
        "retrieve-above-half": str(int((score > 0.5).sum())),
        "retrieve-above-tenth": str(int((score > 0.1).sum())),
        "retrieve-tenth-share": f"{100 * np.mean(score > 0.1):.0f}%",
        "retrieve-tenth-again": f"{100 * np.mean(again > 0.1):.0f}%",
        "retrieve-best": f"{score.max():.2f}",
        "retrieve-all": str(score.size),
        "retrieve-again": f"{alike:.2f}",
    }
    for name in ("none", "retrieving"):
        out[f"retrieve-right-{name}"] = _percent(runs["right"][name])
    others = [runs["right"][n] for n in runs["right"] if n.startswith("others")]
    out["retrieve-right-others"] = _percent(np.mean(others, axis=0))
    whole = np.array(runs["plain"]["none"])
    for name in ("retrieving", "others 0"):
        out[f"retrieve-plain-{slug(name)}"] = _nats(np.array(runs["plain"][name]) - whole)
    return out
