"""``kvaware top workers`` and ``top models``: what there is to do, as the workers say and as it adds up."""

from rich.console import Console

from kvaware_cli.client import ApiClient
from kvaware_cli.output import UNKNOWN, console, ms, print_facts, print_raw, print_table, seconds, table, used_of
from kvaware_cli.wire import Model, ModelList, RoleLoad, Worker, WorkerList, read

__all__ = ["print_models", "print_workers", "top_models", "top_workers"]


def top_workers(server: str, *, output: str) -> None:
    """Print every worker."""
    answer, out = ApiClient(server).workers(), console()
    if output == "table":
        print_workers(out, read(WorkerList, answer).items)
    else:
        print_raw(out, [answer], output)


def top_models(server: str, *, output: str) -> None:
    """Print every model's load."""
    answer, out = ApiClient(server).models(), console()
    if output == "table":
        print_models(out, read(ModelList, answer).items)
    else:
        print_raw(out, [answer], output)


def print_workers(out: Console, workers: tuple[Worker, ...]) -> None:
    """One line per worker."""
    if not workers:
        out.print("no workers in the extender's view: no bound pod names an InferenceModel, or is selected by one")
        return
    columns = ("WORKER", "MODEL", "ROLE", "STATE", "WAITING", "RUNNING", "KV", "GPU", "HITS", "CACHE")
    made = table(*columns, right=frozenset(columns[4:]), names=frozenset({"WORKER", "MODEL"}))
    for worker in sorted(workers, key=lambda each: (each.model, each.role, each.worker)):
        made.add_row(
            worker.worker,
            worker.model.partition("/")[2],  # its namespace is the worker's
            worker.role,
            _state(worker),
            _count(worker.waiting),
            _count(worker.running),
            _percent(worker.kv_usage_ratio),
            _percent(worker.gpu_utilization_ratio),
            _percent(worker.prefix_hit_ratio),
            UNKNOWN if worker.cache_value_ms is None else seconds(worker.cache_value_ms),
            style="" if worker.ready and worker.reporting else "dim",
        )
    print_table(out, made)
    out.print()
    legend = [
        ("WORKER", "namespace:pod:rank, one model-server process with a KV pool of its own"),
        ("STATE", "silent: the last report is too old to count, and so are its figures; not heard: there was none"),
        ("KV", "share of the KV pool in use"),
        ("HITS", "share of prompt tokens that were in the prefix cache"),
        ("CACHE", "seconds of work that losing the worker would cost: what it holds and what it does"),
        (UNKNOWN, "nobody tells"),
    ]
    print_facts(out, legend)


def print_models(out: Console, models: tuple[Model, ...]) -> None:
    """One line per role of each model."""
    if not models:
        out.print("no InferenceModels in the extender's view")
        return
    columns = (
        "MODEL", "ROLE", "WORKERS", "WAITING", "RUNNING", "KV", "REQ/S", "IN/S", "OUT/S", "HITS", "TTFT", "TPOT",
    )  # fmt: skip
    made = table(*columns, right=frozenset(columns[2:]), names=frozenset({"MODEL"}))
    for model in sorted(models, key=lambda each: each.model):
        for role in model.roles:
            made.add_row(*_model_row(model, role), style="" if role.reporting else "dim")
    print_table(out, made)
    out.print()
    legend = [
        ("WORKERS", "those that report, of those that are Ready and take requests; figures are of the former"),
        ("KV", "share of the KV pools in use"),
        ("REQ/S", "requests finished per second; IN/S and OUT/S: tokens of prompts and answers"),
        ("HITS", "share of prompt tokens that were in a prefix cache"),
        ("TTFT", "time to first token, TPOT: time per output token, which 99 % of the requests stay below; ms"),
        (UNKNOWN, "nobody tells, or nothing happened that could tell"),
    ]
    print_facts(out, legend)


def _model_row(model: Model, role: RoleLoad) -> tuple[str, ...]:
    return (
        model.model,
        role.role,
        used_of(str(role.reporting), str(role.workers)),
        _count(role.waiting),
        _count(role.running),
        _percent(role.kv_usage_ratio),
        _rate(role.requests_per_s),
        _rate(role.prompt_tokens_per_s),
        _rate(role.generation_tokens_per_s),
        _percent(role.prefix_hit_ratio),
        UNKNOWN if role.ttft_p99_ms is None else ms(role.ttft_p99_ms),
        UNKNOWN if role.tpot_p99_ms is None else ms(role.tpot_p99_ms),
    )


def _state(worker: Worker) -> str:
    """What keeps requests off it first, then whether it is heard."""
    if not worker.ready:
        return "not Ready"
    if worker.asleep:
        return "asleep"
    if worker.draining:
        return "draining"
    if worker.reporting:
        return "Ready"
    return "not heard" if worker.age_s is None else "silent"


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.0%}"


def _rate(per_s: float | None) -> str:
    """One decimal where it tells something."""
    if per_s is None:
        return UNKNOWN
    return f"{per_s:,.1f}" if per_s < 10 else f"{per_s:,.0f}"
