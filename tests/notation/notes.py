r"""Every equation of the source notes N0 and N3, typed as they print it.

Each parses, with the free and the summed indices that it has to have, or is rejected with the
reason that applies; a rejected formula that has an index form is given in it as well.
The notes' ``\large`` and dollars are left out.
"""

ORDER = "no order or membership"
HEAD = "a head in parentheses leaves the axis of the features unnamed"
LIST = "a list has no index"
DOTS = "a list with dots has no index"
PLACE = "a fixed position is no index"

# (LaTeX, [(free, summed) of each statement])
PARSED = {
    "N0 query": (r"Q^{hia} = X^{ib} W_Q^{hba}", [("hia", "b")]),
    "N0 key": (r"K^{hja} = X^{jb} W_K^{hba}", [("hja", "b")]),
    "N0 value": (r"V^{hjc} = X^{jb} W_V^{hbc}", [("hjc", "b")]),
    "N0 scores": (r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}", [("hij", "a")]),
    "N0 softmax": (
        r"A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})}",
        [("hij", "")],  # the sum over j' belongs to the softmax
    ),
    "N0 head output": (r"O^{hic} = A^{hij} V^{hjc}", [("hic", "j")]),
    "N0 output": (r"Y^{id} = O^{hic} W_O^{hcd}", [("id", "hc")]),
    "N0 width of a head": (r"d_k = d_v = d_{model}/H", [("", "")]),
    "N0 gradient of W_Q by the chain rule": (
        (
            r"\frac{\partial L}{\partial W_Q^{hba}} = "
            r"\frac{\partial L}{\partial Q^{hia}} \frac{\partial Q^{hia}}{\partial W_Q^{hba}}"
        ),
        [("hba", "i")],
    ),
    "N0 Jacobian of the query": (
        r"\frac{\partial Q^{h'i'a'}}{\partial W_Q^{hba}} = \delta^{h'}_h X^{i'b} \delta^{a'}_a",
        [("h'i'a'hba", "")],
    ),
    "N0 gradient of W_Q": (
        r"\frac{\partial L}{\partial W_Q^{hba}} = X^{ib} \frac{\partial L}{\partial Q^{hia}}",
        [("hba", "i")],
    ),
    "N0 gradient of W_O": (
        r"\frac{\partial L}{\partial W_O^{hcd}} = O^{hic} \frac{\partial L}{\partial Y^{id}}",
        [("hcd", "i")],
    ),
    "N3 width of a head": (r"d_h = \frac{d}{H}", [("", "")]),
}

# (LaTeX, reason, the index form with the indices as above, or None where there is no equation)
REJECTED = {
    "N0 heads": (r"h \in \{1, \ldots, H\}", ORDER, None),
    "N0 number of parameters": (r"4 \cdot d_{model}^2", "expected '=', found the end", None),
    "N0 gradient of W_Q as matrices": (
        r"\frac{\partial L}{\partial W_Q^h} = X^T \frac{\partial L}{\partial Q^h}",
        "there is no transpose: write the indices in the other order",
        (
            r"\frac{\partial L}{\partial W_Q^{hba}} = X^{ib} \frac{\partial L}{\partial Q^{hia}}",
            [("hba", "i")],
        ),
    ),
    "N0 subspaces": (
        r"Q_h = X W_Q^h \in \mathbb{R}^{n \times d_k}",
        ORDER,
        (r"Q^{hia} = X^{ib} W_Q^{hba}", [("hia", "b")]),
    ),
    "N0 fused projection": (
        r"[Q; K; V] = X W_{QKV}",
        "a ';' puts arrays side by side",
        (r"F^{nhia} = X^{ib} W_{QKV}^{nhba}", [("nhia", "b")]),
    ),
    "N3 weights of one head": (r"W_q, W_k, W_v \in \mathbb{R}^{d \times d}", "expected '='", None),
    "N3 weights of the heads": (
        r"""
W_q^{(h)}, W_k^{(h)}, W_v^{(h)} \in \mathbb{R}^{d \times d_h}, \quad h = 1, \ldots, H
\text{ - Head number}
""",
        HEAD,
        None,
    ),
    "N3 output of a head": (r"y^{(h)} \in \mathbb{R}^{d_h}", HEAD, None),
    "N3 outputs side by side": (
        r"y = (y^{(1)}, \ldots, y^{(H)})",
        PLACE,
        (r"y^{i(hd_h+c)} = y'^{hic}", [("ihc", "")]),
    ),
    "N3 all outputs": (r"Y = [y_1, \ldots, y_T]", LIST, None),
    "N3 inputs": (
        r"X = [x_1, \ldots, x_T] \in \mathbb{R}^{T \times d}, \quad x_i \in \mathbb{R}^d",
        LIST,
        None,
    ),
    "N3 outputs": (
        r"Y = [y_1, \ldots, y_T] \in \mathbb{R}^{T \times d}, \quad y_i \in \mathbb{R}^d",
        LIST,
        None,
    ),
    "N3 outputs again": (r"Y = [y_1, \ldots, y_T] \in \mathbb{R}^{T \times d}", LIST, None),
    "N3 heads": (r"h = 1, \ldots, H", DOTS, None),
    "N3 weights of each head": (
        r"W_q^{(h)}, W_k^{(h)}, W_v^{(h)} \in \mathbb{R}^{d \times d_h}",
        HEAD,
        None,
    ),
    "N3 query, key, value of a token": (
        r"""
Q_i^{(h)} = x_i W_q^{(h)}, \quad
K_i^{(h)} = x_i W_k^{(h)}, \quad
V_i^{(h)} = x_i W_v^{(h)}, \quad
Q_i^{(h)}, K_i^{(h)}, V_i^{(h)} \in \mathbb{R}^{d_h}
""",
        HEAD,
        (
            r"""
Q^{hia} = x^{ib} W_q^{hba}, \quad
K^{hia} = x^{ib} W_k^{hba}, \quad
V^{hic} = x^{ib} W_v^{hbc}
""",
            [("hia", "b"), ("hia", "b"), ("hic", "b")],
        ),
    ),
    "N3 score": (
        r"\text{score}_{ij}^{(h)} = Q_i^{(h)} K_j^{(h)T}",
        HEAD,
        (r"\text{score}^{hij} = Q^{hia} K^{hja}", [("hij", "a")]),
    ),
    "N3 scaled score": (
        r"\text{score}_{ij}^{{(h)}\text{ scaled}} = \frac{Q_i^{(h)} K_j^{(h)T}}{\sqrt{d_h}}",
        HEAD,
        (r"\text{scaled}^{hij} = \frac{Q^{hia} K^{hja}}{\sqrt{d_h}}", [("hij", "a")]),
    ),
    "N3 softmax": (
        r"""
\alpha_{ij}^{(h)} = \frac{\exp( \text{score}_{ij}^{{(h)}\text{ scaled}} )}
{ \sum_{k=1}^T \exp( \text{score}_{ik}^{{(h)}\text{ scaled}} ) }
\in [0,1]
""",
        HEAD,
        (
            r"""
\alpha^{hij} = \frac{\exp( \text{scaled}^{hij} )}
{ \sum_{k=1}^T \exp( \text{scaled}^{hik} ) }
""",
            [("hij", "")],
        ),
    ),
    "N3 rows of weights": (
        r"\sum_{j} \alpha_{ij}^{(h)} = 1",
        HEAD,
        (r"\sum_{j} \alpha^{hij} = 1", [("hi", "")]),
    ),
    "N3 output of a token in a head": (
        r"y_i^{(h)} = \sum_{j=1}^T \alpha_{ij}^{(h)} V_j^{(h)} \in \mathbb{R}^{d_h}",
        HEAD,
        (r"y^{hic} = \sum_{j=1}^T \alpha^{hij} V^{hjc}", [("hic", "j")]),
    ),
    "N3 concatenation for a token": (
        r"""
y_i^{\text{concat}} = (y_i^{(1)} \dots y_i^{(H)}) \in \mathbb{R}^{H \cdot d_h}
= \mathbb{R}^{d}
""",
        "a word is part of a name, below it",
        (r"y_{\text{concat}}^{i(hd_h+c)} = y^{hic}", [("ihc", "")]),
    ),
    "N3 output of a token": (
        r"y_i = y_i^{\text{concat}} W_o, \quad W_o \in \mathbb{R}^{d \times d}",
        "a word is part of a name, below it",
        (r"y^{id} = y_{\text{concat}}^{im} W_o^{md}", [("id", "m")]),
    ),
    "N3 input": (r"X \in \mathbb{R}^{T \times d}", ORDER, None),
    "N3 weights side by side": (
        r"""
W_q = (W_q^{(1)} \dots W_q^{(H)}) \in \mathbb{R}^{d \times d}, \quad
W_q^{(h)} \in \mathbb{R}^{d \times d_h}
""",
        PLACE,
        (r"W_q^{b(hd_h+a)} = W_q'^{hba}", [("bha", "")]),
    ),
    "N3 query as matrices": (
        r"""
Q = X W_q = (Q^{(1)} \dots Q^{(H)}) \in \mathbb{R}^{T \times d}, \quad
Q^{(h)} \in \mathbb{R}^{T \times d_h}
""",
        PLACE,
        (r"Q^{im} = X^{ib} W_q^{bm}", [("im", "b")]),
    ),
    "N3 weights as matrices": (
        r"""
A^{(h)} = \text{softmax}\left( \frac{Q^{(h)} K^{(h)T}} {\sqrt{d_h}} \right)
\in \mathbb{R}^{T \times T}
""",
        HEAD,
        (
            r"""
S^{hij} = \frac{Q^{hia} K^{hja}} {\sqrt{d_h}} \qquad
A^{hij} = \frac{\exp\left( S^{hij} \right)}{\sum_k \exp\left( S^{hik} \right)}
""",
            [("hij", "a"), ("hij", "")],
        ),
    ),
    "N3 head outputs as matrices": (
        r"""
Y^{(h)} = A^{(h)} V^{(h)} = \begin{pmatrix}
y_1^{(h)} \\
\vdots \\
y_T^{(h)} \\
\end{pmatrix}
\in \mathbb{R}^{T \times d_h}
""",
        HEAD,
        (r"Y^{hic} = A^{hij} V^{hjc}", [("hic", "j")]),
    ),
    "N3 concatenation": (
        r"""
Y_{\text{concat}} = (Y^{(1)} \dots Y^{(H)}) = \begin{pmatrix}
y_1^{\text{concat}} \\
\vdots \\
y_T^{\text{concat}} \\
\end{pmatrix} \in \mathbb{R}^{T \times d}
""",
        PLACE,
        (r"Y_{\text{concat}}^{i(hd_h+c)} = Y^{hic}", [("ihc", "")]),
    ),
    "N3 output as matrices": (
        r"""
Y = Y_{\text{concat}} W_o = \begin{pmatrix}
y_1 \\
\vdots \\
y_T \\
\end{pmatrix} \in \mathbb{R}^{T \times d}
""",
        "a matrix written by rows has no indices",
        (r"Y^{id} = Y_{\text{concat}}^{im} W_o^{md}", [("id", "m")]),
    ),
    "N3 last weights": (r"W_o \in \mathbb{R}^{d \times d}", ORDER, None),
}

# What the book prints today; the texts of the pages themselves are run elsewhere.
BOOK = {
    "layer-projections": r"""
\begin{aligned}
Q^{hia} &= X^{ib}\, W_Q^{hba} \\
K^{hja} &= X^{jb}\, W_K^{hba} \\
V^{hjc} &= X^{jb}\, W_V^{hbc}
\end{aligned}""",
    "layer-scores": r"S^{hij} = \frac{1}{\sqrt{d_k}}\, Q^{hia} K^{hja}",
    "layer-heads": r"""
\begin{aligned}
A^{hij} &= \frac{\exp S^{hij}}{\sum_{j'} \exp S^{hij'}} \\
O^{hic} &= A^{hij} V^{hjc}
\end{aligned}""",
    "layer-output": r"Y^{id} = O^{hic} W_O^{hcd}",
    "sdpa-scores": r"S^{ij} = \frac{1}{\sqrt{d_k}} \sum_a Q^{ia} K^{ja}",
    "sdpa-softmax": r"A^{ij} = \frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}",
    "sdpa-output": r"O^{ic} = \sum_j A^{ij}\, V^{jc}",
    "sdpa-jacobian": (
        r"\frac{\partial A^{ij}}{\partial S^{im}} = A^{ij} \left( \delta^{jm} - A^{im} \right)"
    ),
    "sdpa-sensitivity": r"""
g^i = \sum_j \frac{\partial A^{ij}}{\partial S^{ij}}
= 1 - \sum_j \left( A^{ij} \right)^2""",
    "sdpa-shift": r"""
\frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}
= \frac{\exp\left( S^{ij} - m^i \right)}{\sum_{j'} \exp\left( S^{ij'} - m^i \right)}""",
    "sdpa-lse": r"""
\begin{aligned}
L^i &= m^i + \log \sum_j \exp\left( S^{ij} - m^i \right), \\
A^{ij} &= \exp\left( S^{ij} - L^i \right)
\end{aligned}""",
    "sdpa-entropy": r"H^i = - \sum_j A^{ij} \log A^{ij}",
    "layer-concat": (
        r"\sum_{h} \sum_{c} O^{hic}\, W_O^{hcd} = \sum_{m} \widehat{O}^{im}\, W_O^{md}"
    ),
    "split-projection": r"""
\begin{aligned}
Q^{hia} &= \sum_{b=0}^{D-1} X^{ib}\, W_Q^{hba}, \\
W_Q^{hba} &= W_Q^{b(hH+a)}
\end{aligned}""",
    "split-index": r"X'^{hia} = X^{i(hH+a)}",
    "intro-average": r"O^{ic} = \sum_{j} A^{ij} V^{jc}",
}
