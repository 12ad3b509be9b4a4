"""Which heads can go: importance, removal, and gates that are learned.

:mod:`~mha_book.pruning.importance` scores heads, :mod:`~mha_book.pruning.order` ranks them, once or
again after every removal, :mod:`~mha_book.pruning.removal` makes the smaller layer, and
:mod:`~mha_book.pruning.hard_concrete` has random gates that a training can close.
"""
