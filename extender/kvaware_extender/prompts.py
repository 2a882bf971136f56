"""A demand as it came in → what the engine places: whose model, how long, and the chained hashes of its blocks."""

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, Protocol, TypeVar

import msgspec

from kvaware_crds.errors import WireError
from kvaware_engine.blocks.hashing import OpaqueChain, chain, opaque_hashes, opaque_root, text_hashes
from kvaware_engine.observations import ObjectKey
from kvaware_engine.requests.words import PlacementReason, PlacementRefusal, Precision, RequestDemand
from kvaware_extender.demand_wire import MOST_TOKENS, Demand, LongDemand, Message, TokenId, read

__all__ = ["CHARACTERS_PER_TOKEN", "Models", "Prompts", "read_slowly"]

CHARACTERS_PER_TOKEN: Final = 4
"""What is assumed of text whose length in tokens is not told: the usual rule of thumb for English."""
LONG_TOKENS: Final = 32_768
"""A longer prompt is hashed in slices of this, between which others are answered: at 0.25 µs a block of 16, one takes
half a millisecond. A thread would hold the interpreter for longer at a time than these do."""
LONG_CHARACTERS: Final = 524_288
"""The same of text, at 256 characters to a hash."""
LONG_HASHES: Final = 2048
"""The same of the caller's own hashes: at 0.4 µs each, 1.5 where they are digits."""
SLICE_BYTES: Final = 64 * 1024
"""Of token ids, read in one go: a millisecond."""

MOST_DIGITS: Final = 20
"""Of a number of 64 bits."""


class Models(Protocol):
    """What the engine's ``Placer`` tells of models."""

    def resolve(self, name: str) -> ObjectKey | None:
        """The model that serves under this name."""
        ...

    def adapter(self, model: ObjectKey, served_name: str) -> str | None:
        """Which adapter the name stands for."""
        ...

    def root(self, model: ObjectKey, adapter: str | None, salt: str | None) -> int:
        """Where the chain of hashes begins."""
        ...

    def block_tokens(self, model: ObjectKey) -> int:
        """Tokens per block."""
        ...

    def priority(self, tenant: str, asked: int | None) -> int:
        """The priority that a tenant's request gets; None: it names none."""
        ...


class Prompts:
    """Makes demands of what callers sent."""

    def __init__(
        self, models: Models, *, chunk_characters: int, worker_at: Callable[[ObjectKey, str], str | None]
    ) -> None:
        """Know the models.

        Args:
            models: As they are now.
            chunk_characters: Characters of text per hash.
            worker_at: Which of a model's workers has this address; None: none.
        """
        self._models = models
        self._chunk_characters = chunk_characters
        self._worker_at = worker_at

    async def demand(self, sent: Demand, tenant: str) -> RequestDemand | PlacementRefusal:
        """What is to be placed; others come between where the prompt is long. Raises: WireError.

        Returns: A refusal where no model has the name.
        """
        _check(sent)
        model = self._models.resolve(sent.model)
        if model is None:
            return _of_no_model(sent, tenant)
        if sent.adapter is None:
            sent.adapter = self._models.adapter(model, sent.model)
        root = self._models.root(model, sent.adapter, sent.cache_salt)
        block_tokens = self._models.block_tokens(model)
        if sent.token_ids is not None:
            return await self._of_tokens(sent, tenant, model, root, block_tokens, sent.token_ids)
        if sent.block_hashes is not None:
            return await self._of_hashes(sent, tenant, model, root, block_tokens, sent.block_hashes)
        if sent.prompt is not None or sent.messages is not None:
            return await self._of_text(sent, tenant, model, root, _text(sent))
        if sent.input_tokens is None:
            message = "expected one of token_ids, prompt, messages, block_hashes, or input_tokens alone; got none"
            raise WireError(message)
        return self._made(sent, tenant, model, root, 0, sent.input_tokens, (), block_tokens, Precision.APPROXIMATE)

    async def _of_tokens(
        self, sent: Demand, tenant: str, model: ObjectKey, root: int, block_tokens: int, token_ids: list[int]
    ) -> RequestDemand:
        tokens = len(token_ids)
        if sent.input_tokens is not None and sent.input_tokens != tokens:
            raise WireError(f"input_tokens: expected {tokens}, as many as token_ids, got {sent.input_tokens}")
        if tokens > LONG_TOKENS:
            hashes = await _hash_slowly(
                lambda parent, part: chain(parent, part, block_tokens=block_tokens),
                root,
                token_ids,
                step=max(1, LONG_TOKENS // block_tokens) * block_tokens,
            )
        else:
            hashes = chain(root, token_ids, block_tokens=block_tokens)
        return self._made(sent, tenant, model, root, tokens, tokens, hashes, block_tokens, Precision.PRECISE)

    async def _of_hashes(
        self, sent: Demand, tenant: str, model: ObjectKey, root: int, block_tokens: int, sent_hashes: list[int | str]
    ) -> RequestDemand:
        """Their chain goes on from a root of its own, so that whatever they are, they never meet ours."""
        whole = len(sent_hashes) * block_tokens
        tokens = whole if sent.input_tokens is None else sent.input_tokens
        if tokens < whole:
            message = f"expected {whole} or more for {len(sent_hashes)} block_hashes of {block_tokens} tokens"
            raise WireError(f"input_tokens: {message}, got {tokens}")
        if tokens > MOST_TOKENS:
            raise WireError(f"block_hashes: expected at most {MOST_TOKENS // block_tokens}, got {len(sent_hashes)}")
        chained = OpaqueChain(_own_root(model, root))
        hashes: list[int] = []
        for start in range(0, len(sent_hashes), LONG_HASHES):
            if start:
                await asyncio.sleep(0)
            part = sent_hashes[start : start + LONG_HASHES]
            try:
                hashes += chained.extend(part)  # type: ignore[arg-type]  # strings raise
            except ValueError:
                hashes += chained.extend(list(map(_number, part, range(start, start + len(part)))))
        length = len(sent_hashes)
        return self._made(sent, tenant, model, root, length, tokens, hashes, block_tokens, Precision.APPROXIMATE)

    async def _of_text(self, sent: Demand, tenant: str, model: ObjectKey, root: int, text: str) -> RequestDemand:
        characters, size = len(text), self._chunk_characters
        tokens = max(1, characters // CHARACTERS_PER_TOKEN) if sent.input_tokens is None else sent.input_tokens
        if tokens > MOST_TOKENS:
            expected = MOST_TOKENS * CHARACTERS_PER_TOKEN
            raise WireError(f"prompt or messages: expected at most {expected} characters, got {characters}")
        if characters > LONG_CHARACTERS:
            hashes = await _hash_slowly(
                lambda parent, part: text_hashes(parent, part, chunk_characters=size),
                root,
                text,
                step=max(1, LONG_CHARACTERS // size) * size,
            )
        else:
            hashes = text_hashes(root, text, chunk_characters=size)
        # Where less than a token is said to be in a chunk, the last hashes stand for none and are left out.
        chunk_tokens = max(1, tokens * size // max(1, characters))
        hashes = hashes[: tokens // chunk_tokens]
        return self._made(sent, tenant, model, root, characters, tokens, hashes, chunk_tokens, Precision.APPROXIMATE)

    def _made(
        self,
        sent: Demand,
        tenant: str,
        model: ObjectKey,
        root: int,
        length: int,
        tokens: int,
        hashes: Sequence[int],
        block_tokens: int,
        precision: Precision,
    ) -> RequestDemand:
        """``length``: Of the prompt in the units in which it was sent."""
        candidates = only = None
        if sent.candidates is not None:
            only = frozenset(sent.candidates)
            candidates = frozenset(self._worker(model, name) for name in only)
        return RequestDemand(
            request_id=sent.request_id,
            model=model,
            tenant=tenant,
            input_tokens=tokens,
            block_hashes=hashes,
            block_tokens=block_tokens,
            precision=precision,
            expected_output_tokens=sent.expected_output_tokens,
            priority=self._models.priority(tenant, sent.priority),
            session=sent.session,
            deadline_ms=sent.deadline_ms,
            phase=sent.phase,
            adapter=sent.adapter,
            current_worker=None if sent.current_worker is None else self._worker(model, sent.current_worker),
            candidates=candidates,
            sent=(
                length,
                sent.model,
                sent.input_tokens,
                sent.expected_output_tokens,
                sent.priority,
                sent.session,
                sent.deadline_ms,
                sent.phase,
                None if sent.adapter == sent.model else sent.adapter,  # that one may be ours (``demand``)
                sent.cache_salt,
                sent.current_worker,
                only,
            ),
            root=root,
        )

    def _worker(self, model: ObjectKey, name: str) -> str:
        """The id of a worker that is named by id or address; a name of neither kind matches none."""
        if name.count(":") == 1 or name.startswith("["):
            return self._worker_at(model, name) or name
        return name


async def read_slowly(decoder: msgspec.json.Decoder[LongDemand], body: bytes | msgspec.Raw) -> Demand:
    """Decode a long demand in slices, between which others are answered. Raises: WireError."""
    long = read(decoder, body)
    raw = bytes(long.token_ids).strip()
    fields = {name: getattr(long, name) for name in long.__struct_fields__}
    if raw == b"null":
        return Demand(**{**fields, "token_ids": None})
    if not raw.startswith(b"["):
        raise WireError("token_ids: expected array | null")
    token_ids: list[int] = []
    begin, last = 1, len(raw) - 1
    while begin < last:
        end = raw.find(b",", begin + SLICE_BYTES, last)
        end = last if end < 0 else end
        try:
            token_ids += _SLICE.decode(b"[%b]" % raw[begin:end])
        except msgspec.MsgspecError as e:
            problem = str(e).partition(" - at")[0].replace("`", "")
            raise WireError(f"token_ids, after the first {len(token_ids)}: {problem}") from e
        begin = end + 1
        await asyncio.sleep(0)
    if not 1 <= len(token_ids) <= MOST_TOKENS:
        raise WireError(f"token_ids: expected 1 to {MOST_TOKENS} token ids, got {len(token_ids)}")
    return Demand(**{**fields, "token_ids": token_ids})


_SLICE: Final = msgspec.json.Decoder(list[TokenId])


Part = TypeVar("Part", list[int], str)


async def _hash_slowly(hash_part: Callable[[int, Part], list[int]], root: int, whole: Part, *, step: int) -> list[int]:
    """Hash part after part: each chain goes on where the last one ended. ``step`` is a whole number of blocks."""
    hashes: list[int] = []
    for start in range(0, len(whole), step):
        hashes += hash_part(hashes[-1] if hashes else root, whole[start : start + step])
        await asyncio.sleep(0)
    return hashes


def _of_no_model(sent: Demand, tenant: str) -> PlacementRefusal:
    """What was asked for by a name that nobody has: counted and logged as all that is refused."""
    name = sent.model[:64]
    tokens = len(sent.token_ids) if sent.token_ids is not None else sent.input_tokens or 0
    return PlacementRefusal(
        demand=RequestDemand(request_id=sent.request_id, model=ObjectKey("", name), tenant=tenant, input_tokens=tokens),
        reason=PlacementReason.MODEL_NOT_FOUND,
        message=f"model: expected a served name of an InferenceModel, or namespace/name; got {name!r}",
    )


def _check(sent: Demand) -> None:
    """What the types do not say. Raises: WireError."""
    forms = (sent.token_ids, sent.prompt, sent.messages, sent.block_hashes)
    if forms.count(None) < len(forms) - 1:
        names = ("token_ids", "prompt", "messages", "block_hashes")
        came = " and ".join(name for name, form in zip(names, forms, strict=True) if form is not None)
        raise WireError(f"expected one of {', '.join(names)}; got {came}")
    for name, value in (("request_id", sent.request_id), ("session", sent.session)):
        if value is not None and not (value.isascii() and value.isprintable()):
            raise WireError(f"{name}: expected printable ASCII characters")


@lru_cache(maxsize=1024)
def _own_root(model: ObjectKey, root: int) -> int:
    """Where hashes of the callers' own begin; adapter and salt are in the root of token ids. 4 µs, so it is kept."""
    return opaque_hashes(opaque_root(model), (root,))[0]


def _number(sent: int | str, position: int) -> int:
    """A 64-bit hash, given as a number or in decimal digits. Raises: WireError."""
    digits = isinstance(sent, str) and sent.isascii() and sent.isdecimal() and len(sent) <= MOST_DIGITS
    number = int(sent) if digits or isinstance(sent, int) else -1
    if not 0 <= number < 2**64:
        raise WireError(f"block_hashes[{position}]: expected a whole number from 0 to 2^64 - 1, or its decimal digits")
    return number


def _text(sent: Demand) -> str:
    """The prompt, or a chat as one text that grows only at its end when messages are added."""
    if sent.prompt is not None:
        return sent.prompt
    return "".join(map(_message_text, sent.messages or ()))


def _message_text(message: Message) -> str:
    parts = [message.role, message.name or ""]
    content = message.content
    for part in content if isinstance(content, list) else (content or "",):
        text = part.get("text") if isinstance(part, dict) else part
        parts.append(text if isinstance(text, str) else msgspec.json.encode(part).decode())
    if message.tool_calls is not None:
        parts.append(msgspec.json.encode(message.tool_calls).decode())
    parts.append(message.tool_call_id or "")
    return "\x1f".join(parts) + "\x1e"
