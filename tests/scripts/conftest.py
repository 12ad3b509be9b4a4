"""Scripts whose peers have environments of their own cannot be imported here."""

collect_ignore = ["notation_tensorgrad.py"]
