"""Write a model that vLLM can serve on a CPU core: a Llama of two small layers, with a tokenizer of its own.

    build/vllm/venv/bin/python tests/vllm/make_model.py FOLDER

There are no weights: vLLM fills them with noise (``--load-format dummy``). So the answers mean nothing, but scheduler,
prefix cache, KV events, metrics and tokenizer are vLLM's own. Takes a second, downloads nothing, and gives the same
files everywhere. It runs in vLLM's environment, for its ``tokenizers``.
"""

import json
import string
import sys
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, models, pre_tokenizers

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
CHARACTERS: Final = string.ascii_letters + string.digits + string.punctuation
WORDS: Final = [f"{kind}{number}" for kind in "abcdefgh" for number in range(100)]
"""Whole words: a prompt of n of them has n tokens, which makes blocks easy to count."""
HEAD_DIM: Final = 32
HEADS: Final = 4
KV_HEADS: Final = 2
LAYERS: Final = 2
MAX_TOKENS: Final = 2048


def tokenizer() -> Tokenizer:
    """Split at spaces; a word of ``WORDS`` is one token, everything else is unknown."""
    tokens = [UNKNOWN, BEGIN, END, *CHARACTERS, *WORDS]
    made = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([UNKNOWN, BEGIN, END])
    return made


def config(vocabulary: int) -> dict[str, Any]:
    """What vLLM builds the network from."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HEADS * HEAD_DIM,
        "intermediate_size": 2 * HEADS * HEAD_DIM,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": MAX_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def main(folder: Path) -> None:
    """Write it."""
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizer()
    made.save(str(folder / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": MAX_TOKENS,
    }
    for name, content in (("config.json", config(made.get_vocab_size())), ("tokenizer_config.json", about)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
