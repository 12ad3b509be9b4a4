"""Wrong attentions made from the text of a right one, which knows nothing of the catalog."""

import numpy as np

RIGHT = """
def attention(q, k, v, mask=None, causal=False, window=None, segments=None):
    batch, n_heads, length, width = q.shape
    groups = n_heads // k.shape[1]
    k, v = np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)
    scores = np.einsum("bhid,bhjd->bhij", q, k) / np.sqrt(width)
    i, j = np.arange(length)[:, None], np.arange(k.shape[2])[None]
    if causal:
        scores = np.where(j <= i + (k.shape[2] - length), scores, -np.inf)
    if window is not None:
        scores = np.where(i - j < window, scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    if segments is not None:
        scores = np.where(segments[:, None, :, None] == segments[:, None, None], scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    return np.einsum("bhij,bhjd->bhid", weights, v)
"""
POWERS = "np.exp(scores - np.where(np.isfinite(top), top, 0))"
VALUES = "return np.einsum('bhij,bhjd->bhid', powers, v)"
CHANGES = [
    ("scale-missing", " / np.sqrt(width)", ""),
    ("scale-no-root", "/ np.sqrt(width)", "/ width"),
    ("scale-d-model", "/ np.sqrt(width)", "/ np.sqrt(n_heads * width)"),
    ("scale-heads", "/ np.sqrt(width)", "/ np.sqrt(n_heads)"),
    ("scale-multiplied", "/ np.sqrt(width)", "* np.sqrt(width)"),
    ("scale-fourth-root", "/ np.sqrt(width)", "/ np.sqrt(np.sqrt(width))"),
    ("softmax-over-queries", "axis=-1, keepdims", "axis=-2, keepdims"),
    ("softmax-over-heads", "axis=-1, keepdims", "axis=1, keepdims"),
    ("softmax-over-heads-and-keys", "axis=-1, keepdims", "axis=(1, 3), keepdims"),
    ("softmax-unstable", POWERS, "np.exp(scores)"),
    ("softmax-missing", POWERS, f"np.where(np.isfinite(scores), scores, 0); {VALUES}"),
    (
        "kv-heads-tiled",
        "k, v = np.repeat",
        "k, v = (np.tile(x, (1, groups, 1, 1)) for x in (k, v)); _ = np.repeat",
    ),
    ("kv-values-tiled", "np.repeat(v, groups, axis=1)", "np.tile(v, (1, groups, 1, 1))"),
    ("causal-strict", "j <= i", "j < i"),
    ("causal-one-ahead", "j <= i", "j <= 1 + i"),
    ("causal-reversed", "j <= i", "j >= i"),
    ("causal-top-left", " + (k.shape[2] - length)", ""),
    ("causal-ignored", "if causal:", "if False:"),
    ("window-one-more", "i - j < window", "i - j <= window"),
    ("window-one-less", "i - j < window", "i - j < window - 1"),
    ("window-inverted", "i - j < window", "i - j >= window"),
    ("mask-inverted", "np.where(mask, scores, -np.inf)", "np.where(mask, -np.inf, scores)"),
    ("mask-transposed", "np.where(mask,", "np.where(mask.swapaxes(2, 3),"),
    ("mask-first-sequence", "np.where(mask,", "np.where(mask[0],"),
    ("hidden-scores-zero", "np.where(mask, scores, -np.inf)", "np.where(mask, scores, -1e-9)"),
    ("mask-added-as-numbers", "np.where(mask, scores, -np.inf)", "scores + mask"),
    ("mask-ignored", "if mask is not None", "if mask is not None and False"),
    ("documents-leak", "if segments is not None", "if False"),
    ("documents-see-earlier", "None] == segments", "None] >= segments"),
    ("keys-values-exchanged", "groups = ", "k, v = v, k; groups = "),
    ("values-are-keys", 'bhjd->bhid", weights, v', 'bhjd->bhid", weights, k'),
    ("weights-transposed", "bhij,bhjd->bhid", "bhji,bhjd->bhid"),
    (
        "heads-averaged",
        "return",
        "weights = weights.mean(1, keepdims=True).repeat(n_heads, 1); return",
    ),
    ("weights-do-not-sum", POWERS, f"np.exp(scores); {VALUES}"),
    (
        "softmax-twice",
        "return",
        "weights = np.exp(weights); weights /= weights.sum(-1, keepdims=True); return",
    ),
    ("empty-row-nan", "np.where(total == 0, 1, total)", "total"),
    (
        "first-sequence-for-all",
        "groups = ",
        "k, v = k[:1].repeat(batch, 0), v[:1].repeat(batch, 0); groups = ",
    ),
    ("dropout-in-evaluation", "return", "weights *= np.random.rand(*weights.shape) > 0.1; return"),
    ("argmax", "return", "weights = np.eye(weights.shape[-1])[scores.argmax(-1)]; return"),
]


LAYER = """
def layer(params, x, context, mask=None, causal=False):
    p = {name: np.asarray(weight) for name, weight in params.items()}
    x, context = np.asarray(x), np.asarray(context)
    batch, length, width = x.shape
    q = x @ p["wq"] + p["bq"]
    k = context @ p["wk"] + p["bk"]
    v = context @ p["wv"] + p["bv"]
    q, k, v = (y.reshape(batch, y.shape[1], 4, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], k=0, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    powers = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = powers.sum(axis=-1, keepdims=True)
    weights = powers / np.where(total == 0, 1, total)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, -1)
    return out @ p["wo"] + p["bo"]
"""
SPLIT, JOIN = "y.shape[1], 4, -1).transpose(0, 2, 1, 3)", "v).transpose(0, 2, 1, 3)"
LAYER_CHANGES = [
    (
        "memory-ignored",
        "batch, length, width = x.shape",
        "batch, length, width = x.shape; context = x",
    ),
    ("keys-projected-as-queries", 'p["wk"] + p["bk"]', 'p["wq"] + p["bq"]'),
    ("values-projected-as-keys", 'p["wv"] + p["bv"]', 'p["wk"] + p["bk"]'),
    ("values-projected-as-queries", 'p["wv"] + p["bv"]', 'p["wq"] + p["bq"]'),
    (
        "biases-missing",
        "np.asarray(weight) for",
        "np.asarray(weight) * (name[0] == 'w' or name == 'bo') for",
    ),
    ("output-projection-missing", 'out @ p["wo"] + p["bo"]', "out"),
    ("output-bias-missing", ' + p["bo"]', ""),
    ("output-projection-transposed", '@ p["wo"]', '@ p["wo"].T'),
    ("output-projected-twice", "return out", 'out = out @ p["wo"] + p["bo"]; return out'),
    ("split-without-transpose", SPLIT, "4, y.shape[1], -1)"),
    ("split-interleaved", SPLIT, "y.shape[1], -1, 4).transpose(0, 3, 1, 2)"),
    ("join-without-transpose", JOIN, "v)"),
    ("join-interleaved", JOIN, "v).transpose(0, 2, 3, 1)"),
    ("one-head", "4, -1)", "1, -1)"),
    *(
        (
            f"{name}-without-transpose",
            "scores =",
            f"{x} = {x}.swapaxes(1, 2).reshape({x}.shape); scores =",
        )
        for name, x in (("queries", "q"), ("keys", "k"), ("values", "v"))
    ),
    ("scale-missing", " / np.sqrt(q.shape[-1])", ""),
    ("scale-d-model", "np.sqrt(q.shape[-1])", "np.sqrt(width)"),
    ("softmax-over-queries", "axis=-1, keepdims", "axis=-2, keepdims"),
    ("softmax-over-heads", "axis=-1, keepdims", "axis=1, keepdims"),
    ("mask-inverted", "np.where(mask, scores, -np.inf)", "np.where(mask, -np.inf, scores)"),
    ("hidden-scores-zero", "np.where(mask, scores, -np.inf)", "np.where(mask, scores, -1e-9)"),
    ("causal-strict", "k=0", "k=-1"),
    ("causal-one-ahead", "k=0", "k=1"),
    ("causal-ignored", "if causal", "if False"),
    ("keys-values-exchanged", "scores = q @", "k, v = v, k; scores = q @"),
    ("weights-do-not-sum", "np.where(total == 0, 1, total)", "1"),
]


def mutilated(*changes, source=RIGHT):
    """The right attention, or layer, with some texts changed."""
    for _, old, new in changes:
        assert old in source
        source = source.replace(old, new)
    scope = {"np": np}
    exec(source, scope)
    return scope["attention" if "attention" in scope else "layer"]
