"""SQLEnv's four actions in a stock OpenEnv server, for the comparison in docs/benchmarks.md.

It does less than env-node, to its own advantage: no reward layers, no limits on SQL, every answer
counts as right. One uvicorn worker, as OpenEnv ships: sessions live in the process.

    python python/benchmarks/stock_openenv_server.py ../shared/data/spider 8100
"""

import re
import sqlite3
import sys
from pathlib import Path

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

DATA = Path(sys.argv[1])
STEP_BUDGET = 15


class SQLAction(Action):
    action_type: str
    argument: str


class SQLObservation(Observation):
    question: str
    schema_info: str
    result: str = ""
    error: str = ""
    step_count: int = 0
    budget_remaining: int = 0
    action_history: list[str] = Field(default_factory=list)


class StockEnvironment(Environment[SQLAction, SQLObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()
        self._connection: sqlite3.Connection | None = None
        self._tables: list[str] = []
        self._history: list[str] = []
        self._question = ""

    def reset(
        self, seed=None, episode_id=None, question_id="", database_name="", **_
    ) -> SQLObservation:
        if self._connection:
            self._connection.close()
        [path] = [
            *DATA.glob(f"database*/{database_name}/{database_name}.sqlite"),
            *DATA.glob(f"databases/{database_name}.sqlite"),
        ]
        self._connection = sqlite3.connect(
            f"file:{path}?mode=ro", uri=True, check_same_thread=False
        )
        self._connection.text_factory = lambda text: text.decode(errors="replace")
        self._tables = [
            name
            for (name,) in self._connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            )
        ]
        self._state = State(episode_id=episode_id, step_count=0)
        self._history, self._question = [], question_id
        return self._observation()

    def step(self, action: SQLAction, timeout_s=None, **_) -> SQLObservation:
        self._state.step_count += 1
        self._history.append(f"{action.action_type} {action.argument}")
        if action.action_type == "ANSWER":
            return self._observation(done=True, reward=1.0)
        try:
            return self._observation(result=self._run(action), reward=0.0)
        except (sqlite3.Error, sqlite3.Warning) as error:
            return self._observation(error=f"SQL error: {error}", reward=-0.02)

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    def _run(self, action: SQLAction) -> str:
        table = action.argument.replace('"', '""')
        if action.action_type == "DESCRIBE":
            columns = self._connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            [(count,)] = self._connection.execute(f'SELECT COUNT(*) FROM "{table}"')
            lines = [f"- {name}: {kind}" for _, name, kind, *_ in columns]
            return "\n".join([f"Table '{action.argument}' columns:", *lines, f"Row count: {count}"])
        if action.action_type == "SAMPLE":
            return self._rows(f'SELECT * FROM "{table}" LIMIT 5')
        if re.match(r"\s*(SELECT|WITH)\b", action.argument, re.IGNORECASE):
            return self._rows(action.argument)
        raise sqlite3.Warning("only SELECT is allowed")

    def _rows(self, sql: str) -> str:
        rows = self._connection.execute(sql).fetchmany(20)
        return "\n".join(
            f"{number}. {' | '.join(map(str, row))}" for number, row in enumerate(rows, 1)
        )

    def _observation(self, **fields) -> SQLObservation:
        made = self._state.step_count
        return SQLObservation(
            question=self._question,
            schema_info="Available tables:\n" + "\n".join(f"- {name}" for name in self._tables),
            step_count=made,
            budget_remaining=STEP_BUDGET - made,
            action_history=list(self._history),
            **fields,
        )


if __name__ == "__main__":
    app = create_fastapi_app(
        StockEnvironment, SQLAction, SQLObservation, max_concurrent_envs=4096, env_name="sql_env"
    )
    uvicorn.run(app, port=int(sys.argv[2]), log_level="warning")
