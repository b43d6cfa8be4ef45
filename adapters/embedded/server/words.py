"""Conversion between text and token ids for the HTTP server. Each word is one token.

The server has no tokenizer of the model, so the token count of a text is its word count.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

FIRST_WORD_ID = 1_000  # lower ids are for the roles of a chat
_ROLE_IDS = 900  # lower ids are unused, because special tokens have them
_OWN_WORD = re.compile(r"t(\d{1,9})")  # a word from `text_of`


def text_of(ids: Iterable[int]) -> str:
    """Return the text of `ids`, one word per id, such as ` t123 t9`."""
    return "".join(f" t{token}" for token in ids)


def ids_of(text: str, vocabulary: int) -> list[int]:
    """Return one id below `vocabulary` for each word of `text`. Equal words have equal ids.

    A word from `text_of` gets its original id, so an output in the next prompt matches its KV
    blocks in the prefix cache.
    """
    return [_word_id(word, vocabulary) for word in text.split()]


def chat_ids(messages: Sequence[Mapping[str, str]], vocabulary: int) -> list[int]:
    """Return the ids of a chat: a role id before each message, and one before the answer.

    The ids of the next turn begin with the ids of this chat and its answer.
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
