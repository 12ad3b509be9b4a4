"""Nothing to collect where torch may be missing."""

collect_ignore = ["measures.py", "models.py"]
