"""A stub of OpenEnv's WebSocket protocol with one question and one session per socket.

The shapes are those of the protocol's two live versions; test_openenv_client.py also plays against
the binary.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import Any

from websockets.sync.server import ServerConnection, serve

SCHEMA = "Available tables:\n- cars"


@dataclass
class StubOpenEnv:
    """Serves /ws until `stop`."""

    #: Whether `metadata` lies in the observation and beside it, as in 0.10, or nowhere, as in 0.2.
    with_metadata: bool
    #: What arrived.
    frames: list[dict[str, Any]] = field(default_factory=list)

    def start(self) -> StubOpenEnv:
        self._server = serve(self._session, "127.0.0.1", 0)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def stop(self) -> None:
        self._server.shutdown()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"

    def _session(self, socket: ServerConnection) -> None:
        episode_id, history = None, []
        for text in socket:
            frame = json.loads(text)
            self.frames.append(frame)
            data = frame.get("data", {})
            if frame["type"] == "close":
                return
            if frame["type"] == "state":
                reply = {
                    "type": "state",
                    "data": {"episode_id": episode_id, "step_count": len(history)},
                }
            elif frame["type"] == "reset":
                episode_id, history = data.get("episode_id", "made-up"), []
                reply = self._observation(history, {}, None, False)
            elif episode_id is None:
                reply = {
                    "type": "error",
                    "data": {"message": "reset first", "code": "EXECUTION_ERROR"},
                }
            else:
                history.append(f"{data['action_type']} {data['argument']}")
                done = data["action_type"] == "ANSWER"
                reply = self._observation(history, {"result": "1. 39"}, 1.0 if done else 0.02, done)
            socket.send(json.dumps(reply))

    def _observation(
        self, history: list[str], seen: dict[str, Any], reward: float | None, done: bool
    ) -> dict[str, Any]:
        observation = {
            "question": "How many?",
            "schema_info": SCHEMA,
            "result": "",
            "error": "",
            "step_count": len(history),
            "budget_remaining": 15 - len(history),
            "action_history": history,
            **seen,
        }
        payload: dict[str, Any] = {"observation": observation, "reward": reward, "done": done}
        if self.with_metadata:
            payload = {
                **payload,
                "observation": {"metadata": {"a": 1}, **observation},
                "metadata": {"a": 1},
            }
        return {"type": "observation", "data": payload}
