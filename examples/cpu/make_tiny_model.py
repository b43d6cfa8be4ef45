"""Write a tiny Llama with random weights and its own tokenizer, to serve without a download.

    FOLDER_OF_AN_ENGINE/bin/python examples/cpu/make_tiny_model.py OUT

Needs torch and transformers from the engine's environment. The model has 3.8 million parameters in
4 layers, 4,096 token ids, a context of 4,096 tokens, and float32 weights. The same Python version
writes the same bytes. The output has no meaning and repeats itself, so n-gram drafts are accepted
more often than with a real model.
"""  # noqa: INP001  a script, not a package

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
CONTEXT_TOKENS = 4096
SPECIAL = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>")  # ids 0 to 4
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>"
    "{% endfor %}<|assistant|>"
)
SOURCES = 150  # files of Python's standard library for training the tokenizer


def tokenizer() -> PreTrainedTokenizerFast:
    """Train a byte-level tokenizer on Python's standard library and return it."""
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:SOURCES]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    pairs.train([str(path) for path in library], trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=pairs,
        bos_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        model_max_length=CONTEXT_TOKENS,
    )
    made.chat_template = CHAT
    return made


def model() -> LlamaForCausalLM:
    """Return a Llama with reproducible random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
        dtype="float32",
    )
    return LlamaForCausalLM(config)


def main(out: str) -> None:
    """Write the tokenizer and the model into `out`."""
    Path(out).mkdir(parents=True, exist_ok=True)
    tokenizer().save_pretrained(out)
    model().save_pretrained(out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_tiny_model.py OUT")
    main(sys.argv[1])
