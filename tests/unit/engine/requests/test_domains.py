"""Between which workers KV can move."""

from kvaware_engine.requests.domains import transfer_domain


def domain(*, revision: str = "main", block_tokens: int = 16, gpus: int = 4, told: str | None = None) -> str:
    """Of a worker that tells nothing, on 4 GPUs."""
    return transfer_domain(revision=revision, block_tokens=block_tokens, gpus=gpus, told=told)


def test_workers_alike_in_all_that_is_known_are_one_domain():
    """Another revision, block size, number of GPUs or word of its own is another one."""
    assert domain() == domain()
    others = [domain(revision="v2"), domain(block_tokens=32), domain(gpus=8), domain(told="tp4"), domain(told="tp8")]
    assert len({domain(), *others}) == 6


def test_who_tells_is_alike_with_whoever_says_the_same():
    """On whatever number of GPUs: the words say the layout; a worker that tells nothing cannot be taken for it."""
    assert domain(told="tp4", gpus=4) == domain(told="tp4", gpus=8)
    assert domain(told="gpus=4") != domain()
