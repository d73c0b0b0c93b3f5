"""Generated messages and stubs of `sqlenv.v1` (see tests/generate_stubs.py)."""
