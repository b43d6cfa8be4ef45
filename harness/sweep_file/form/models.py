"""The form of a sweep file, as pydantic models. What each key may hold stands here and only here.

Nothing outside of `harness/spec*.py` sees these: `spec.load_sweep` turns them into plain frozen
dataclasses. Toggles are read apart (`spec_toggles`), since their values depend on their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from harness.sweep_file.form.engine_models import Engine, engine_mapping
from harness.sweep_file.form.field_models import (
    Count,
    Duration,
    File,
    Form,
    LengthsForm,
    Name,
    PositiveShare,
    Share,
    SomeTime,
    Text,
    Tokens,
    listed,
    not_yet,
    one_of,
)
from harness.sweep_file.problems import shown
from harness.workloads.trace import FORMATS, NANOSECONDS

LISTS = ("engines", "workloads", "load")  # the sections of `Lists`


class SharedPrefixForm(Form):
    """A workload whose prompts begin with one of a few long texts."""

    kind: Literal["shared-prefix"]
    name: Name = "shared-prefix"
    prefix_tokens: LengthsForm
    suffix_tokens: LengthsForm
    output_tokens: LengthsForm
    groups: Count = 1


class MultiTurnForm(Form):
    """A workload of chats, each turn sending the whole history."""

    kind: Literal["multi-turn"]
    name: Name = "multi-turn"
    turns: Count
    first_tokens: LengthsForm
    turn_tokens: LengthsForm
    output_tokens: LengthsForm
    system_tokens: LengthsForm | None = None
    think_time: Duration = 0
    history: Annotated[
        Literal["recorded", "live"], BeforeValidator(one_of(("recorded", "live")))
    ] = "recorded"


class TraceForm(Form):
    """A workload read from a file of real traffic."""

    kind: Literal["trace"]
    name: Name = "trace"
    path: File
    format: Annotated[str, BeforeValidator(one_of(("auto", *FORMATS)))] = "auto"
    block_tokens: Tokens | None = None
    time_unit: Annotated[str, BeforeValidator(one_of(tuple(NANOSECONDS)))] | None = None
    over_length: Literal["skip", "refuse"] = "skip"
    bad_rows: Literal["refuse", "skip"] = "refuse"


WORKLOAD_FORMS = {
    "shared-prefix": SharedPrefixForm,
    "multi-turn": MultiTurnForm,
    "trace": TraceForm,
}
_LATER_KINDS = ("conversations", "structured")


def _workload_kind(value: object) -> object:
    """Refuse a mapping without a known kind before the union is validated: its error is vaguer."""
    if not isinstance(value, Mapping):
        wanted = "expected a mapping with a 'kind'"
        raise ValueError(f"{wanted}; found {shown(value)}")  # noqa: TRY004 - pydantic takes no other
    if "kind" not in value:
        raise ValueError(f"the key 'kind' is missing; expected one of: {', '.join(WORKLOAD_FORMS)}")
    one_of(tuple(WORKLOAD_FORMS), _LATER_KINDS)(value["kind"])
    return value


WorkloadForm = Annotated[
    Annotated[SharedPrefixForm, Tag("<shared-prefix>")]
    | Annotated[MultiTurnForm, Tag("<multi-turn>")]
    | Annotated[TraceForm, Tag("<trace>")],
    Discriminator(lambda value: f"<{value['kind']}>"),
]


class LoadForm(Form):
    """The keys of every load besides its level."""

    workloads: Annotated[tuple[Name, ...], Field(min_length=1, strict=False)] | None = None
    output_tokens: LengthsForm | None = None


class ClosedForm(LoadForm):
    """`{concurrency: 100, requests: 400}`."""

    concurrency: Count
    requests: Count


class GammaShape(Form):
    """Coefficient of variation of the gaps: 1 is Poisson, more is burstier."""

    cv: Annotated[float, Field(gt=0, le=100)]


class Gamma(Form):
    """`{gamma: {cv: 2}}`."""

    gamma: GammaShape


class RateForm(LoadForm):
    """`{rate: 2, duration: 300 s, arrivals: poisson}`."""

    rate: Annotated[float, Field(gt=0, le=1_000_000)]
    duration: SomeTime
    arrivals: Annotated[
        Annotated[
            Literal["poisson", "constant"],
            BeforeValidator(one_of(("poisson", "constant", "trace"))),
            Tag("<process>"),
        ]
        | Annotated[Gamma, Tag("<gamma>")],
        Discriminator(lambda value: "<gamma>" if isinstance(value, Mapping) else "<process>"),
    ] = "poisson"
    max_concurrency: Count | None = None


class TraceTimesForm(LoadForm):
    """`{arrivals: trace, limit: 1000, speedup: 4}`."""

    arrivals: Literal["trace"]
    limit: Count | None = None
    speedup: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    max_concurrency: Count | None = None


def _one_kind(value: object) -> object:
    """Refuse a load that is of two kinds before the union is validated, which would pick one."""
    keys = set(value) if isinstance(value, Mapping) else set()
    closed, opened = keys & {"concurrency", "requests"}, keys & {"rate", "duration"}
    found = ", ".join(sorted(closed) + sorted(opened))
    if isinstance(value, Mapping) and value.get("arrivals") == "trace" and found:
        raise ValueError(f"arrivals: trace takes its times from the trace; leave out {found}")
    if closed and opened:
        wanted = "concurrency goes with requests, rate with duration; a load has one of the pairs"
        raise ValueError(f"{wanted}, found {found}")
    return value


def _load_form(value: object) -> str:
    if not isinstance(value, Mapping):
        return "<closed>"
    if value.get("arrivals") == "trace":
        return "<trace-times>"
    return "<open>" if {"rate", "duration", "arrivals"} & set(value) else "<closed>"


AnyLoad = Annotated[
    Annotated[ClosedForm, Tag("<closed>")]
    | Annotated[RateForm, Tag("<open>")]
    | Annotated[TraceTimesForm, Tag("<trace-times>")],
    Discriminator(_load_form),
]


class HardwareForm(Form):
    """The GPUs of the machine."""

    gpu: Text
    count: Annotated[int, Field(ge=1, le=4096)] = 1


class Base(Form):
    """What every arm has in common, besides the values of toggles."""

    max_model_len: Tokens = 8192
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    max_num_seqs: Count = 256
    max_batched_tokens: Tokens = 512
    memory_utilization: PositiveShare = 0.9
    trust_remote_code: bool = False


def _base_mapping(value: object) -> object:
    if isinstance(value, str):
        one_of((), ("engine-defaults",))(value)
    return value


MOST_DRAFT_TOKENS = 64  # a step


class DraftTree(Form):
    """A draft that branches: so many children of each node, over so many levels."""

    branches: Annotated[int, Field(ge=2, le=8)]
    depth: Annotated[int, Field(ge=1, le=8)]

    @property
    def tokens(self) -> int:
        """Its nodes: what is drafted a step."""
        return sum(self.branches**level for level in range(1, self.depth + 1))

    @model_validator(mode="after")
    def _drafted_at_most(self) -> Self:
        if self.tokens > MOST_DRAFT_TOKENS:
            raise ValueError(
                f"{self.branches} branches over {self.depth} levels are {self.tokens} tokens a "
                f"step; at most {MOST_DRAFT_TOKENS} are drafted"
            )
        return self


class SpeculationForm(Form):
    """A value of the toggle `speculative` with its options."""

    method: Annotated[
        Literal["ngram", "draft", "eagle", "eagle3"],
        BeforeValidator(one_of(("ngram", "draft", "eagle", "eagle3"))),
    ]
    tokens: Annotated[int, Field(ge=1, le=MOST_DRAFT_TOKENS)] | None = None  # drafted a step
    tree: DraftTree | None = None  # in place of `tokens`, which are a chain
    draft: Text | None = None  # the draft model
    acceptance: Share | None = None  # assumed share of drafted tokens that are accepted

    @model_validator(mode="after")
    def _chain_or_tree(self) -> Self:
        if self.tree is not None and self.tokens is not None:
            raise ValueError("a tree says itself how many tokens it drafts: leave 'tokens' out")
        return self


class Limits(Form):
    """Latency limits that a good answer keeps."""

    ttft: SomeTime | None = None
    tpot: SomeTime | None = None
    e2e: SomeTime | None = None


def _blocks(value: object) -> object:
    if value == "auto":
        raise ValueError(f"{not_yet(value)}; give a whole number, such as 3")
    return value


EngineList = Annotated[
    list[Annotated[Engine, BeforeValidator(engine_mapping)]],
    BeforeValidator(listed),
    Field(min_length=1),
]
WorkloadList = Annotated[
    list[Annotated[WorkloadForm, BeforeValidator(_workload_kind)]],
    BeforeValidator(listed),
    Field(min_length=1),
]
LoadList = Annotated[
    list[Annotated[AnyLoad, BeforeValidator(_one_kind)]],
    BeforeValidator(listed),
    Field(min_length=1),
]


class Lists(BaseModel):
    """The sections that name each other: held together even where another section is wrong."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    engines: EngineList = []
    workloads: WorkloadList = []
    load: LoadList = []


def _workers(value: object) -> object:
    """Return None for `auto`, which leaves their number to the load."""
    return None if value == "auto" else value


class SweepForm(Form):
    """A whole sweep file."""

    name: Name | None = None
    model: Annotated[str, Field(min_length=1, max_length=1000)]
    hardware: HardwareForm
    engines: EngineList
    base: Annotated[Base, BeforeValidator(_base_mapping)] = Base()
    toggles: Any = None  # read by `spec_toggles`
    design: Annotated[
        Literal["one-at-a-time", "leave-one-out", "pairs", "full"],
        BeforeValidator(one_of(("one-at-a-time", "leave-one-out", "pairs", "full"))),
    ] = "one-at-a-time"
    workloads: WorkloadList
    load: LoadList
    cache: Annotated[
        Literal["cold", "primed", "steady"],
        BeforeValidator(one_of(("cold", "primed", "steady"))),
    ] = "cold"
    blocks: Annotated[int, BeforeValidator(_blocks), Field(ge=1, le=1000)] = 3
    workers: Annotated[int | None, BeforeValidator(_workers), Field(ge=1, le=256)] = None
    request_timeout: SomeTime = 1_800_000_000_000
    slo: Limits = Limits()
    max_failed_share: Share = 0.01
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
