r"""What heads do: measures of attention patterns, of agreement, of composition, of contribution.

Every measure comes with the value that an uninformed head has, one that spreads its attention
evenly over the visible keys: without it a number says little, since on a short text an uninformed
head attends to the previous token a good deal.

:mod:`~mha_book.specialization.patterns` and :mod:`~mha_book.specialization.targets` measure one
head's weights, :mod:`~mha_book.specialization.measures` has the table of these measures,
:mod:`~mha_book.specialization.streaming` sums them over texts,
:mod:`~mha_book.specialization.words` goes from tokens to annotated words,
:mod:`~mha_book.specialization.repeats` makes the sequences that induction heads show on,
:mod:`~mha_book.specialization.probes` those that need heads of two kinds,
:mod:`~mha_book.specialization.agreement` compares and groups heads,
:mod:`~mha_book.specialization.composition` asks the weights which heads can build on which, and
:mod:`~mha_book.specialization.contribution` what heads write to the residual stream and the logits.
"""
