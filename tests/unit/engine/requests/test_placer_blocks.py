"""What is known of workers' blocks, by what they tell and by what they were sent: the one ends the other."""

import pytest

from kvaware_engine.blocks.events import BlocksStored
from kvaware_engine.blocks.hashing import chain, text_hashes
from kvaware_engine.requests.figures import Figure
from kvaware_engine.requests.words import EventType, Placement, Precision
from kvaware_testing.placer_builders import PlacerAtWork
from kvaware_testing.worker_builders import MODEL

TOKENS = list(range(1600))
BLOCK = 16
DOZEN = 12
"""Requests that find nothing bring the trust below one half."""


class World(PlacerAtWork):
    """Prompts of token ids, and events that tell of them."""

    def sends(self, tokens: list[int] = TOKENS) -> Placement:
        """A prompt, and one token more."""
        return self.placed(**self.asked(tokens))

    def asked(self, tokens: list[int]) -> dict[str, object]:
        hashes = chain(self.placer.root(MODEL, None, None), tokens, block_tokens=BLOCK)
        return {
            "input_tokens": len(tokens) + 1,
            "block_hashes": hashes,
            "block_tokens": BLOCK,
            "precision": Precision.PRECISE,
        }

    def sends_text(self, text: str = "a" * 25_600) -> Placement:
        """A prompt of which no token is known."""
        hashes = text_hashes(self.placer.root(MODEL, None, None), text, chunk_characters=256)
        return self.placed(input_tokens=6401, block_hashes=hashes, block_tokens=64, precision=Precision.APPROXIMATE)

    def finds(self, placement: Placement, cached_tokens: int) -> None:
        """Its server says what it found, and it is over."""
        self.tells(placement, EventType.FIRST_TOKEN, cached_tokens=cached_tokens)
        self.tells(placement, EventType.FINISHED, output_tokens=1)

    def stores(self, worker: str, tokens: list[int] = TOKENS, *, first: int = 1, block: int = BLOCK, **fields) -> None:
        names = list(range(first, first + len(tokens) // block))
        event = BlocksStored(engine_hashes=names, token_ids=tokens, block_tokens=block, **fields)
        self.placer.observe_blocks(worker, [event], now_s=self.now_s)

    def held(self, tokens: list[int] = TOKENS) -> list[float]:
        """Of the prompt, by worker."""
        seen = self.candidates(self.demand("look", **self.asked(tokens)))
        return seen.matched_tokens[: len(self.names)].tolist()


@pytest.mark.parametrize("ends", ["before", "after"])
def test_what_was_sent_ends_when_the_worker_begins_to_tell(ends: str) -> None:
    """An empty replay says that it holds nothing; no removal would ever name what was only assumed."""
    world = World(1)
    placement = world.sends()
    if ends == "before":
        world.finds(placement, 0)
    world.placer.observe_blocks(world.names[0], [], now_s=world.now_s)
    assert world.held() == [0.0]
    if ends == "after":
        world.finds(placement, 0)
    assert world.held() == [0.0]
    world.stores(world.names[0])
    assert world.held() == [1600.0]


def test_text_that_matches_wrongly_takes_nothing_from_what_a_worker_told() -> None:
    """A date in the server's chat template: text never hits, token ids do."""
    world = World(1)
    world.stores(world.names[0])
    for _ in range(DOZEN):
        world.finds(world.sends_text(), 0)
    assert world.held() == [1600.0]
    assert world.candidates(world.demand("look")).figures[Figure.CONFIDENCE_RATIO, 0] == 1.0
    assert world.sends_text().option.matched_tokens < 6400 / 2, "and is believed less and less"
    assert world.placer.take_doubted() == []


def test_who_tells_wrongly_is_asked_anew_and_believed_as_far_as_it_proves_right() -> None:
    """vllm-project/aibrix#2287, a lost clear. To forget it here would not help: what is there is never told again."""
    world = World(1)
    world.stores(world.names[0])
    for _ in range(DOZEN):
        world.finds(world.sends(), 0)
    assert world.placer.take_doubted() == [world.names[0]]
    assert world.placer.take_doubted() == []
    assert world.held() == [1600.0]
    confidence = world.candidates(world.demand("look")).figures[Figure.CONFIDENCE_RATIO, 0]
    assert confidence < 0.5
    for _ in range(3 * DOZEN):
        world.finds(world.sends(), 1600)
    assert world.candidates(world.demand("look")).figures[Figure.CONFIDENCE_RATIO, 0] > 0.9


def test_who_is_heard_anew_is_believed_and_matched_again() -> None:
    world = World(1)
    world.stores(world.names[0])
    for _ in range(DOZEN):
        world.finds(world.sends(), 0)
    world.placer.events_ended(world.names[0], now_s=world.now_s)
    world.stores(world.names[0], TOKENS[:320], first=5000)
    assert world.held() == [320.0]
    assert world.candidates(world.demand("look")).figures[Figure.CONFIDENCE_RATIO, 0] == 1.0


def test_one_worker_with_other_blocks_changes_nothing_for_the_others() -> None:
    """A rolling update of the block size: prompts are cut as most workers cut them."""
    world = World(3)
    for worker in world.names[:2]:
        world.stores(worker)
    world.stores(world.names[2], block=64)
    assert world.placer.block_tokens(MODEL) == BLOCK
    world.stores(world.names[1], TOKENS[:640], first=9000, block=64)
    assert world.placer.block_tokens(MODEL) == 64
