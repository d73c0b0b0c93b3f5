from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    ERROR_REASON_NOT_FOUND: _ClassVar[ErrorReason]
    ERROR_REASON_INVALID_FIELD: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_MALFORMED: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_FOREIGN_KEY: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_FORGED: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_EXPIRED: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_FOREIGN_VERSION: _ClassVar[ErrorReason]
    ERROR_REASON_TOKEN_FOREIGN_DATABASE: _ClassVar[ErrorReason]
    ERROR_REASON_OVERLOADED: _ClassVar[ErrorReason]
    ERROR_REASON_WALL_CLOCK: _ClassVar[ErrorReason]
    ERROR_REASON_NODE_FAULT: _ClassVar[ErrorReason]
    ERROR_REASON_DATABASE_BROKEN: _ClassVar[ErrorReason]
    ERROR_REASON_DEADLINE_EXCEEDED: _ClassVar[ErrorReason]
    ERROR_REASON_BEARER_TOKEN_REFUSED: _ClassVar[ErrorReason]
    ERROR_REASON_FOREIGN_ENVIRONMENT: _ClassVar[ErrorReason]
ERROR_REASON_UNSPECIFIED: ErrorReason
ERROR_REASON_NOT_FOUND: ErrorReason
ERROR_REASON_INVALID_FIELD: ErrorReason
ERROR_REASON_TOKEN_MALFORMED: ErrorReason
ERROR_REASON_TOKEN_FOREIGN_KEY: ErrorReason
ERROR_REASON_TOKEN_FORGED: ErrorReason
ERROR_REASON_TOKEN_EXPIRED: ErrorReason
ERROR_REASON_TOKEN_FOREIGN_VERSION: ErrorReason
ERROR_REASON_TOKEN_FOREIGN_DATABASE: ErrorReason
ERROR_REASON_OVERLOADED: ErrorReason
ERROR_REASON_WALL_CLOCK: ErrorReason
ERROR_REASON_NODE_FAULT: ErrorReason
ERROR_REASON_DATABASE_BROKEN: ErrorReason
ERROR_REASON_DEADLINE_EXCEEDED: ErrorReason
ERROR_REASON_BEARER_TOKEN_REFUSED: ErrorReason
ERROR_REASON_FOREIGN_ENVIRONMENT: ErrorReason

class ResetRequest(_message.Message):
    __slots__ = ("question_id", "split", "seed", "episode_id", "reward_profile", "step_budget", "data_sha256", "environment_version")
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_PROFILE_FIELD_NUMBER: _ClassVar[int]
    STEP_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    question_id: str
    split: str
    seed: int
    episode_id: str
    reward_profile: str
    step_budget: int
    data_sha256: str
    environment_version: str
    def __init__(self, question_id: _Optional[str] = ..., split: _Optional[str] = ..., seed: _Optional[int] = ..., episode_id: _Optional[str] = ..., reward_profile: _Optional[str] = ..., step_budget: _Optional[int] = ..., data_sha256: _Optional[str] = ..., environment_version: _Optional[str] = ...) -> None: ...

class ResetResponse(_message.Message):
    __slots__ = ("token", "episode_id", "question_id", "observation")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EPISODE_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    episode_id: str
    question_id: str
    observation: Observation
    def __init__(self, token: _Optional[bytes] = ..., episode_id: _Optional[str] = ..., question_id: _Optional[str] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ...) -> None: ...

class StepRequest(_message.Message):
    __slots__ = ("token", "action")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    action: Action
    def __init__(self, token: _Optional[bytes] = ..., action: _Optional[_Union[Action, _Mapping]] = ...) -> None: ...

class StepResponse(_message.Message):
    __slots__ = ("token", "observation", "reward_components", "correct")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REWARD_COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    observation: Observation
    reward_components: RewardComponents
    correct: bool
    def __init__(self, token: _Optional[bytes] = ..., observation: _Optional[_Union[Observation, _Mapping]] = ..., reward_components: _Optional[_Union[RewardComponents, _Mapping]] = ..., correct: bool = ...) -> None: ...

class ReplayRequest(_message.Message):
    __slots__ = ("token", "actions")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    token: bytes
    actions: _containers.RepeatedCompositeFieldContainer[Action]
    def __init__(self, token: _Optional[bytes] = ..., actions: _Optional[_Iterable[_Union[Action, _Mapping]]] = ...) -> None: ...

class ReplayResponse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[StepResponse]
    def __init__(self, steps: _Optional[_Iterable[_Union[StepResponse, _Mapping]]] = ...) -> None: ...

class Action(_message.Message):
    __slots__ = ("action_type", "argument")
    ACTION_TYPE_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    action_type: str
    argument: str
    def __init__(self, action_type: _Optional[str] = ..., argument: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("question", "schema_info", "result", "error", "step_count", "budget_remaining", "action_history", "done", "reward")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_INFO_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_REMAINING_FIELD_NUMBER: _ClassVar[int]
    ACTION_HISTORY_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    question: str
    schema_info: str
    result: str
    error: str
    step_count: int
    budget_remaining: int
    action_history: _containers.RepeatedScalarFieldContainer[str]
    done: bool
    reward: float
    def __init__(self, question: _Optional[str] = ..., schema_info: _Optional[str] = ..., result: _Optional[str] = ..., error: _Optional[str] = ..., step_count: _Optional[int] = ..., budget_remaining: _Optional[int] = ..., action_history: _Optional[_Iterable[str]] = ..., done: bool = ..., reward: _Optional[float] = ...) -> None: ...

class RewardComponents(_message.Message):
    __slots__ = ("operational", "progress", "terminal", "clip")
    OPERATIONAL_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    CLIP_FIELD_NUMBER: _ClassVar[int]
    operational: float
    progress: float
    terminal: float
    clip: float
    def __init__(self, operational: _Optional[float] = ..., progress: _Optional[float] = ..., terminal: _Optional[float] = ..., clip: _Optional[float] = ...) -> None: ...

class ListQuestionsRequest(_message.Message):
    __slots__ = ("split", "database_name", "page_size", "page_token")
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    split: str
    database_name: str
    page_size: int
    page_token: str
    def __init__(self, split: _Optional[str] = ..., database_name: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQuestionsResponse(_message.Message):
    __slots__ = ("questions", "next_page_token", "total_size")
    QUESTIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    questions: _containers.RepeatedCompositeFieldContainer[Question]
    next_page_token: str
    total_size: int
    def __init__(self, questions: _Optional[_Iterable[_Union[Question, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., total_size: _Optional[int] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("question_id", "question_text", "database_name", "split", "difficulty")
    QUESTION_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_TEXT_FIELD_NUMBER: _ClassVar[int]
    DATABASE_NAME_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    DIFFICULTY_FIELD_NUMBER: _ClassVar[int]
    question_id: str
    question_text: str
    database_name: str
    split: str
    difficulty: str
    def __init__(self, question_id: _Optional[str] = ..., question_text: _Optional[str] = ..., database_name: _Optional[str] = ..., split: _Optional[str] = ..., difficulty: _Optional[str] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoResponse(_message.Message):
    __slots__ = ("environment_version", "default_reward_profile", "default_step_budget", "databases", "splits", "data_sha256")
    ENVIRONMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_REWARD_PROFILE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_STEP_BUDGET_FIELD_NUMBER: _ClassVar[int]
    DATABASES_FIELD_NUMBER: _ClassVar[int]
    SPLITS_FIELD_NUMBER: _ClassVar[int]
    DATA_SHA256_FIELD_NUMBER: _ClassVar[int]
    environment_version: str
    default_reward_profile: str
    default_step_budget: int
    databases: _containers.RepeatedCompositeFieldContainer[Database]
    splits: _containers.RepeatedCompositeFieldContainer[Split]
    data_sha256: str
    def __init__(self, environment_version: _Optional[str] = ..., default_reward_profile: _Optional[str] = ..., default_step_budget: _Optional[int] = ..., databases: _Optional[_Iterable[_Union[Database, _Mapping]]] = ..., splits: _Optional[_Iterable[_Union[Split, _Mapping]]] = ..., data_sha256: _Optional[str] = ...) -> None: ...

class Database(_message.Message):
    __slots__ = ("name", "sha256", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Split(_message.Message):
    __slots__ = ("name", "question_count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUESTION_COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    question_count: int
    def __init__(self, name: _Optional[str] = ..., question_count: _Optional[int] = ...) -> None: ...
