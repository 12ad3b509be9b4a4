r"""What heads do: measures of attention patterns, of similarity, of composition, of contribution.

Every measure comes with its baseline: the value of a head that spreads its attention evenly over
the visible keys. Without it a number says little, since on a short text such a head attends to the
previous token a good deal.

:mod:`~mha_book.specialization.patterns` measures one head's weights,
:mod:`~mha_book.specialization.measures` all heads by name, summed over texts,
:mod:`~mha_book.specialization.words` goes from tokens to annotated words,
:mod:`~mha_book.specialization.synthetic` makes sequences that show what a head does,
:mod:`~mha_book.specialization.similarity` compares and clusters heads,
:mod:`~mha_book.specialization.composition` asks the weights which heads can build on which,
:mod:`~mha_book.specialization.contribution` what heads write to the residual stream and the logits,
:mod:`~mha_book.specialization.patching` puts activations of one run into another, and
:mod:`~mha_book.specialization.circuits` reads a head's weights in tokens, and its scores in parts.
"""
