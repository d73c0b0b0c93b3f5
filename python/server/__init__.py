"""Starts an env-node where OpenEnv's tools expect a server."""
