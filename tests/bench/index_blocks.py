"""What both sides of the index's bench are told: workers, their prompts and the blocks of these. Standard library only.

A prompt's tokens are consecutive numbers, so that a million blocks are there at once; each side hashes them itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

BLOCK_TOKENS = 16
WORKERS = 64
SHARED_BLOCKS = 8
"""With which every prompt begins: a system prompt."""
OWN_BLOCKS, PROMPTS = 48, 310
"""Of each worker's short prompts; with the long ones they are a million blocks."""
LONG_BLOCKS = 742
SHORT_MATCH, LONG_MATCH = 24, SHARED_BLOCKS + LONG_BLOCKS
"""Blocks: 12,000 tokens are 750."""
EVENT_BLOCKS = 32
"""The most blocks that one event tells."""
ONES, MANIES = 8_192, 4_096
"""Events that are measured, of one block and of 32."""
ANSWER_BLOCKS = 16


@dataclass(frozen=True)
class Run:
    """Blocks that one event tells: consecutive ones of one prompt."""

    worker: int
    first: int
    """Number of the first block; the others follow."""
    blocks: int
    parent: int | None
    """Number of the block before; None: the prompt begins."""

    @property
    def names(self) -> list[int]:
        """The worker's names of its blocks."""
        return [name_of(self.first + at) for at in range(self.blocks)]

    @property
    def parent_name(self) -> int | None:
        """The worker's name of the block before."""
        return None if self.parent is None else name_of(self.parent)

    @property
    def tokens(self) -> list[int]:
        """Of all its blocks."""
        return list(range(self.first * BLOCK_TOKENS, (self.first + self.blocks) * BLOCK_TOKENS))


def name_of(block: int) -> int:
    """Spread over all 63 bits, as hashes are."""
    return (block + 1) * 0x9E3779B97F4A7C15 & (2**63 - 1)


def own_first(worker: int, prompt: int) -> int:
    """The number of a prompt's first own block. The prompt PROMPTS is the long one."""
    return 1_000 + worker * 100_000 + prompt * 100


def prompt_tokens(worker: int, prompt: int, blocks: int) -> list[int]:
    """The first blocks of a prompt."""
    first = own_first(worker, prompt)
    own = range(first * BLOCK_TOKENS, (first + blocks - SHARED_BLOCKS) * BLOCK_TOKENS)
    return [*range(SHARED_BLOCKS * BLOCK_TOKENS), *own]


def filling() -> Iterator[Run]:
    """What the workers hold from the beginning."""
    for worker in range(WORKERS):
        yield Run(worker, 0, SHARED_BLOCKS, None)
        for prompt in range(PROMPTS + 1):
            first, blocks = own_first(worker, prompt), LONG_BLOCKS if prompt == PROMPTS else OWN_BLOCKS
            for at in range(0, blocks, EVENT_BLOCKS):
                parent = first + at - 1 if at else SHARED_BLOCKS - 1
                yield Run(worker, first + at, min(EVENT_BLOCKS, blocks - at), parent)


def single_blocks() -> Iterator[Run]:
    """Answers that grow side by side, block by block, as servers tell of them."""
    answers = ONES // ANSWER_BLOCKS
    for number in range(ONES):
        worker, prompt = number % answers % WORKERS, number % answers // WORKERS
        last = own_first(worker, prompt) + OWN_BLOCKS - 1 + number // answers
        yield Run(worker, last + 1, 1, last)


def new_prompts() -> Iterator[Run]:
    """New prompts after the shared beginning, 32 blocks each."""
    for number in range(MANIES):
        first = own_first(number % WORKERS, PROMPTS + 10 + number // WORKERS)
        yield Run(number % WORKERS, first, EVENT_BLOCKS, SHARED_BLOCKS - 1)


def asked() -> list[tuple[int, int]]:
    """Workers' prompts that are looked for, mixed."""
    return [(number * 37 % WORKERS, number * 101 % PROMPTS) for number in range(2_000)]
