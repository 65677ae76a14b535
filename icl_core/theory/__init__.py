"""The papers' closed forms, one module per subject; every function names its statement."""
