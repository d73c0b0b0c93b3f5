"""Tests that errors pass between processes, as those of workers do."""

from __future__ import annotations

import pickle

import grpc
import pytest
from sqlenv import EnvDiverged, EnvError, EnvRefused, EnvUnreachable, EnvUnserved


@pytest.mark.parametrize("kind", [EnvError, EnvRefused, EnvUnreachable, EnvUnserved, EnvDiverged])
def test_an_error_is_the_same_after_a_pickle(kind: type[EnvError]) -> None:
    error = kind("on demand", grpc.StatusCode.UNAVAILABLE, "NODE_FAULT")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.code, copy.reason) == ("on demand", error.code, "NODE_FAULT")
