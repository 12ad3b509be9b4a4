"""The other libraries, and the package beside them: how each one is called."""
