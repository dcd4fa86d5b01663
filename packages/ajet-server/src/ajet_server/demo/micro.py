"""A micro model made on the spot: a random Llama with 512 tokens, for tests and `ajet quickstart --tiny`.

It cannot speak, but it is a whole model folder: config, weights, tokenizer and chat template, so every code path that
a large model takes is taken.
"""

from pathlib import Path

_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "system user assistant",
    "To compute, write CALC: and the expression. Then give the result.",
    "What is 12 + 30? CALC: 12 + 30 RESULT: 42 The answer is 42.",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30",
]
VOCAB_SIZE = 512


def make_micro_model(folder: Path, seed: int = 0) -> Path:
    """Writes the micro model into `folder` (made if need be) and returns it. The same seed gives the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    folder.mkdir(parents=True, exist_ok=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        _CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=["<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",  # noqa: S106 - a token of text
        eos_token="<|im_end|>",  # noqa: S106
        pad_token="<|im_start|>",  # noqa: S106
        chat_template=_TEMPLATE,
    )
