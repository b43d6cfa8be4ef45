"""Multi-turn conversations. Each prompt is the whole history plus a new question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from harness.workloads.base import Drawn, Segment, Turn, WorkloadError
from harness.workloads.fitting import LENGTHS_A_TIME, fitting_conversations
from harness.workloads.lengths import Lengths
from harness.workloads.seeds import generator, text_names

_RECORDED = (
    "history is recorded: each prompt contains drawn answers instead of the engine's answers, "
    "so all arms send the same prompts; with live history the prefix cache also contains the "
    "answers"
)
_LIVE = (
    "history is live: each prompt contains the engine's answers, so prompts have the same lengths "
    "in all arms, but their text may differ"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurn:
    """Conversations of `turns` questions, with recorded or live history.

    The first prompt is the system prompt, which all conversations share, and a question of
    `first_tokens`. Each later prompt adds the previous answer, at its drawn length, and a
    question of `turn_tokens`. With live history the client sends the server's answer instead of
    the drawn one.
    """

    name: str
    turns: int
    first_tokens: Lengths
    turn_tokens: Lengths
    output_tokens: Lengths
    think_time_ns: int = 0  # pause between an answer and the next question
    system_tokens: Lengths | None = None
    # recorded | live. Not in the repr, because both draw the same questions.
    history: str = field(default="recorded", repr=False)

    def __post_init__(self) -> None:
        """Refuse numbers that make no valid conversation."""
        if self.turns < 1:
            raise WorkloadError(f"{self.name}: turns is {self.turns}, expected at least 1")
        if self.think_time_ns < 0:
            raise WorkloadError(
                f"{self.name}: think time is {self.think_time_ns} ns, expected at least 0"
            )
        if min(part.minimum for part in self._drawn_each_turn()) < 1:
            raise WorkloadError(f"{self.name}: questions and answers must have at least 1 token")

    def draw(self, *, requests: int | None, seed: int, max_model_len: int) -> Drawn:
        """Return whole conversations with at least `requests` turns in total.

        A conversation ends before the first turn that exceeds `max_model_len`; this turn and the
        later ones are counted as `context_full`. A larger draw from the same seed begins with the
        same conversations. Raises `WorkloadError`.
        """
        drawn = fitting_conversations(
            self.name,
            self._chats(seed),
            requests=requests,
            max_model_len=max_model_len,
            reason="context_full",
        )
        if self.turns == 1:
            return drawn
        if self.history == "recorded":
            return replace(drawn, notes=(_RECORDED,))
        chats = tuple(replace(one, live=True) for one in drawn.conversations)
        return replace(drawn, conversations=chats, notes=(_LIVE,))

    def describe(self) -> str:
        """Describe the requests in one line."""
        system = f"system {self.system_tokens.describe()} + " if self.system_tokens else ""
        think = f", {self.think_time_ns / 1e9:g} s think time" if self.think_time_ns else ""
        return (
            f"{self.name}: chats of {self.turns} turns, {system}first "
            f"{self.first_tokens.describe()}, then {self.turn_tokens.describe()}"
            f" → output {self.output_tokens.describe()} tokens{think}, {self.history} history"
        )

    def _drawn_each_turn(self) -> tuple[Lengths, ...]:
        return (self.first_tokens, self.turn_tokens, self.output_tokens)

    def _chats(self, seed: int) -> Iterator[tuple[Turn, ...]]:
        """Yield conversations endlessly."""
        system = self._system(seed)
        first_rng, turn_rng = generator(seed, "first length"), generator(seed, "turn length")
        output_rng = generator(seed, "output length")
        chats, turns = LENGTHS_A_TIME, self.turns
        for first_chat in count(0, chats):
            numbers = range(first_chat * turns, (first_chat + chats) * turns)
            names = [text_names(seed, use, numbers) for use in ("question", "answer")]
            questions = self.turn_tokens.draw(chats * turns, turn_rng)
            questions[::turns] = self.first_tokens.draw(chats, first_rng)
            answers = self.output_tokens.draw(chats * turns, output_rng)
            question_segments, answer_segments = (
                [Segment(*pair) for pair in zip(texts, tokens.tolist(), strict=True)]
                for texts, tokens in zip(names, (questions, answers), strict=True)
            )
            for start in range(0, chats * turns, turns):
                stop = start + turns
                yield self._chat(system, question_segments[start:stop], answer_segments[start:stop])

    def _system(self, seed: int) -> tuple[Segment, ...]:
        """Return the system prompt that all conversations share; empty without one."""
        if self.system_tokens is None:
            return ()
        [tokens] = self.system_tokens.draw(1, generator(seed, "system length")).tolist()
        [text] = text_names(seed, "system", [0])
        return (Segment(text, tokens),) if tokens else ()

    def _chat(
        self, system: tuple[Segment, ...], questions: list[Segment], answers: list[Segment]
    ) -> tuple[Turn, ...]:
        """Return all turns of one conversation, before it is limited to the context length."""
        history = system
        turns: list[Turn] = []
        for question, answer in zip(questions, answers, strict=True):
            prompt = (*history, question)
            think_ns = self.think_time_ns if turns else 0
            turns.append(Turn(prompt=prompt, output_tokens=answer.tokens, think_time_ns=think_ns))
            history = (*prompt, answer)
        return tuple(turns)
