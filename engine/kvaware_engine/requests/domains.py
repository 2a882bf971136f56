"""Between which workers KV blocks can move: the transfer domain (design §3)."""

__all__ = ["transfer_domain"]


def transfer_domain(*, revision: str, block_tokens: int, gpus: int, told: str | None) -> str:
    """One worker's domain: model revision, block size, and layout, connector and version in its own words.

    A KV dtype is told by no server; the words may hold it. Workers that tell nothing are taken for alike when they run
    on as many GPUs: pods of one template are. They are never taken for alike with one that tells.

    Args:
        revision: Of the model.
        block_tokens: Tokens of one KV block.
        gpus: Of the worker.
        told: ``transfer_domain`` of its heartbeats.
    """
    layout = f"gpus={gpus}" if told is None else f"told={told}"
    return f"{revision}|{block_tokens}|{layout}"
