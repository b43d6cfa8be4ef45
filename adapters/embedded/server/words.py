"""Text and token ids for the HTTP side: a word is a token, and an output's words are its ids.

No tokenizer of the served model is here; counts of a text's tokens are counts of its words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

FIRST_WORD_ID = 1_000  # lower ids mark the roles of a chat
_ROLE_IDS = 900  # ids below this one are not used, as special tokens are there
_OWN_WORD = re.compile(r"t(\d{1,9})")  # what `text_of` writes


def text_of(ids: Iterable[int]) -> str:
    """Return the text of `ids`, a word each, such as ` t123 t9`."""
    return "".join(f" t{token}" for token in ids)


def ids_of(text: str, vocabulary: int) -> list[int]:
    """Return one id below `vocabulary` for each word of `text`, the same for the same word.

    A word that `text_of` wrote gets its id back, so that an output that is part of the next prompt
    finds its own KV blocks.
    """
    return [_word_id(word, vocabulary) for word in text.split()]


def chat_ids(messages: Sequence[Mapping[str, str]], vocabulary: int) -> list[int]:
    """Return the ids of a chat: a role's mark before each message, and one for the answer.

    A chat that goes on begins with the ids of the chat so far and its answer.
    """
    ids: list[int] = []
    for message in messages:
        ids.append(_role_id(message["role"]))
        ids.extend(ids_of(message["content"], vocabulary))
    return [*ids, _role_id("assistant")]


@lru_cache(maxsize=1 << 16)
def _word_id(word: str, vocabulary: int) -> int:
    own = _OWN_WORD.fullmatch(word)
    if own and int(own[1]) < vocabulary:
        return int(own[1])
    spread = zlib.crc32(word.encode("utf-8", "surrogatepass"))
    return FIRST_WORD_ID + spread % (vocabulary - FIRST_WORD_ID)


def _role_id(role: str) -> int:
    return _ROLE_IDS + zlib.crc32(role.encode("utf-8", "surrogatepass")) % 100
