"""The JSON of the API: what requests hold and what answers give. Unknown fields of requests are refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

Name = Annotated[str, Meta(min_length=1, max_length=64)]
ModelName = Annotated[str, Meta(max_length=255)]  # a task, or the encoder
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Texts = Annotated[list[str], Meta(min_length=1)]


class Given(Struct, forbid_unknown_fields=True):
    """A part of a request."""


class QuestionInput(Given):
    """An input of a task that answers questions."""

    question: str
    context: str


Input = str | Texts | QuestionInput  # a text; a pair of texts or a list of words; a question


class Row(Given):
    """One text for one task."""

    task: Name
    input: Input
    version: Positive | None = None


class PredictRequest(Given):
    """Either `requests`, or every one of `tasks` for every one of `inputs`."""

    requests: Annotated[list[Row], Meta(min_length=1)] | None = None
    tasks: Annotated[list[Name], Meta(min_length=1)] | None = None
    inputs: Annotated[list[Input], Meta(min_length=1)] | None = None
    top_k: Positive | None = None
    truncate: bool = True
    timeout_ms: Milliseconds | None = None


class TaskPredictRequest(Given):
    """Texts for the task of the path."""

    inputs: Annotated[list[Input], Meta(min_length=1)]
    version: Positive | None = None
    top_k: Positive | None = None
    truncate: bool = True
    timeout_ms: Milliseconds | None = None


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str
    request_id: str | UnsetType = UNSET


class ErrorBody(Struct):
    """The body of every failure."""

    error: ErrorDetail


class Result(Struct, omit_defaults=True):
    """The answer to one row, or its error. Which fields are present depends on the kind of the task."""

    index: int
    task: str | None = None
    version: int | None = None
    kind: Literal["label", "labels", "score", "tags", "span", "words"] | None = None
    label: str | None = None
    labels: list[str] | None = None
    score: float | None = None
    probability: float | None = None
    probabilities: dict[str, float] | None = None
    tags: list[dict[str, Any]] | None = None
    entities: list[dict[str, Any]] | None = None
    answer: str | None = None
    start: int | None = None
    no_answer_score: float | None = None
    candidates: list[dict[str, Any]] | None = None
    masks: list[dict[str, Any]] | None = None
    error: ErrorDetail | None = None


class Usage(Struct):
    rows: int
    tokens: int
    truncated: int


class Times(Struct):
    """Milliseconds of each stage."""

    total: float
    tokenization: float
    queue: float
    inference: float


class PredictReply(Struct):
    id: str
    results: list[Result]
    usage: Usage
    timing_ms: Times


class TaskInfo(Struct, omit_defaults=True):
    """A task, or one version of it. A task whose file is damaged has its name, version and state only."""

    task: str
    version: int
    state: str
    served: bool
    resident: bool
    kind: str | None = None
    labels: list[str] | None = None
    pairs: bool | None = None
    method: str | None = None
    method_options: dict[str, Any] | None = None
    metric: str | None = None
    dev: float | None = None
    test: dict[str, Any] | None = None  # value, low, high, examples
    parameters: dict[str, int] | None = None
    share: float | None = None  # of the base's parameters
    bytes: int | None = None
    rows: dict[str, Any] | None = None
    max_length: int | None = None
    created: str | None = None
    digest: str | None = None
    history: list[dict[str, Any]] | None = None  # of the training, epoch by epoch


class TaskList(Struct):
    tasks: list[TaskInfo]
    total: int
    next_cursor: str | None


class VersionList(Struct):
    task: str
    versions: list[TaskInfo]


class RestoreRequest(Given):
    version: Positive


class Health(Struct):
    status: str
    reason: str | UnsetType = UNSET


class Info(Struct):
    """What the service is, and every limit in force."""

    intarsia: str
    encoder: dict[str, Any]
    device: str
    precision: str
    tasks: int
    limits: dict[str, Any]
    engine: dict[str, Any]
    keys: dict[str, bool]


class Stats(Struct):
    """Counters from the start of the service, the queue, and the latencies of the latest requests."""

    engine: dict[str, Any]
    latency_ms: dict[str, float]  # calls (how many), p50, p95, p99
    in_flight: int


class EmbeddingsRequest(Given):
    """OpenAI's request. `model` is a task, or the encoder's name for the plain base. A list may also
    hold the other inputs of `/v1/predict`, such as pairs."""

    input: str | Annotated[list[Input], Meta(min_length=1)]
    model: ModelName
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Positive | None = None
    user: str | None = None


class Embedding(Struct):
    object: str
    index: int
    embedding: list[float] | str


class OpenAIUsage(Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsReply(Struct):
    object: str
    data: list[Embedding]
    model: str
    usage: OpenAIUsage


class Created(Struct):
    """What the list of models reads of a task's description."""

    created: str


class Model(Struct):
    id: str
    object: str
    created: int
    owned_by: str


class ModelList(Struct):
    object: str
    data: list[Model]


class ClassifyRequest(Given):
    """vLLM's request. `model` is a task. Texts are cut to the task's longest length, and to no other."""

    model: ModelName
    input: str | Texts
    truncate_prompt_tokens: Literal[-1] | None = None
    user: str | None = None


class Classified(Struct):
    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifyReply(Struct):
    id: str
    object: str
    created: int
    model: str
    data: list[Classified]
    usage: OpenAIUsage


class TEIRequest(Given):
    """Text Embeddings Inference's request: a text, a pair, or a batch of lists of one or two texts. `model` is a task;
    a bank with one task needs none."""

    inputs: str | Annotated[list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]], Meta(min_length=1)]
    raw_scores: bool = False
    truncate: bool = False
    truncation_direction: Literal["Right", "right"] = "Right"
    model: ModelName | None = None


class TEIScore(Struct):
    score: float
    label: str


class JobRequest(Given):
    """A task to learn. `rows` are objects with the columns of a data file."""

    task: Name
    rows: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    method: str | None = None
    text: str | None = None
    pair: str | None = None
    label: str | None = None
    kind: Literal["label", "labels", "score", "tags", "span", "words"] | None = None
    drop_missing: bool = False  # leave out rows without a text or a label
    limit: Positive | None = None
    pooling: Literal["mean", "cls", "pooler", "trained-pooler"] = "mean"
    learning_rate: Annotated[float, Meta(gt=0, le=1)] | None = None
    epochs: Annotated[int, Meta(ge=1, le=1000)] | None = None
    batch_size: Annotated[int, Meta(ge=1, le=4096)] | None = None
    max_length: Annotated[int, Meta(ge=3, le=8192)] | None = None
    metric: str | None = None
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    serve_anyway: bool = False


class Preview(Struct, omit_defaults=True):
    """What a job would learn from. With a `problem`, a job would fail; what was found before it is still present."""

    columns: list[str]
    examples: list[dict[str, str]]  # the first rows, with long values cut
    problem: str | None = None
    kind: str | None = None
    text: str | None = None  # the columns
    pair: str | None = None
    label: str | None = None
    labels: dict[str, int] | None = None  # how often each occurs, the most frequent first
    distinct: int | None = None  # labels in all: `labels` has the first of them only
    rows: dict[str, int] | None = None  # train, dev, test
    notes: list[str] = []


class JobInfo(Struct, omit_defaults=True):
    """A job and its state."""

    id: str
    task: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    created: str
    started: str | None = None
    ended: str | None = None
    error: str | None = None
    version: int | None = None  # that the job added
    served: bool | None = None  # not if it scored worse than the version that is served
    progress: dict[str, Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None


class JobList(Struct):
    jobs: list[JobInfo]
