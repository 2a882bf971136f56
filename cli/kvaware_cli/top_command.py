"""``kvaware top``: HBM headroom per node and use per tenant, as the extender sees them now."""

from rich.console import Console

from kvaware_cli.client import ApiClient
from kvaware_cli.output import console, gib, gib_pair, plural, print_facts, print_raw, print_table, table, used_of
from kvaware_cli.wire import Node, NodeList, Pool, RequestUse, Tenant, TenantList, read

__all__ = ["print_nodes", "print_tenants", "top_nodes", "top_tenants"]


def top_nodes(server: str, *, output: str) -> None:
    """Print every node's GPUs."""
    answer, out = ApiClient(server).nodes(), console()
    if output == "table":
        print_nodes(out, read(NodeList, answer).items)
    else:
        print_raw(out, [answer], output)


def top_tenants(server: str, *, output: str) -> None:
    """Print every tenant's use, limits and guarantees."""
    answer, out = ApiClient(server).tenants(), console()
    if output == "table":
        print_tenants(out, read(TenantList, answer).items)
    else:
        print_raw(out, [answer], output)


def print_nodes(out: Console, nodes: tuple[Node, ...]) -> None:
    """One line per node and GPU resource, then what keeps pods off nodes."""
    if not nodes:
        out.print("no nodes in the extender's view")
        return
    columns = ("NODE", "GPUS", "MODE", "FREE", "HBM FREE", "RESERVED", "FOREIGN")
    made = table(*columns, right=frozenset(columns[3:]), wrap=frozenset({"GPUS"}), names=frozenset({"NODE"}))
    ordered = sorted(nodes, key=lambda n: n.name)
    for node in ordered:
        for pool in node.pools or (None,):
            made.add_row(*_node_row(node, pool), style="" if node.ready else "dim")
    print_table(out, made)
    out.print()
    legend = [
        ("FREE", "GPUs that nothing holds, of those that the kubelet offers"),
        ("HBM FREE", "GiB that one more pod is sure to get on a GPU, of the GPU's size less what is kept back"),
        ("RESERVED", "GiB over all GPUs of the line that pods hold"),
        ("FOREIGN", "GiB over all GPUs of the line in use without a reservation; ? without an exporter"),
        ("tenants", "are charged whole GPUs at the label's size, and of shared ones what is reserved"),
    ]
    print_facts(out, [*legend, *((node.name, note) for node in ordered for note in _notes(node))])


def _node_row(node: Node, pool: Pool | None) -> tuple[str, ...]:
    if pool is None:
        return (node.name, "none", "", "", "", "", "")
    capacities = [gpu.capacity_bytes for gpu in pool.gpus if gpu.capacity_bytes is not None]
    foreign = [gpu.foreign_bytes for gpu in pool.gpus if gpu.foreign_bytes is not None]
    mode = f"{pool.gpu_class} x{pool.replicas}" if pool.replicas > 1 else pool.gpu_class
    return (
        node.name,
        f"{pool.devices} {_device_name(pool)}",
        mode,
        used_of(str(pool.free), str(pool.allocatable)),
        gib_pair(pool.hbm_free_bytes, min(capacities, default=None)),
        gib(sum(gpu.reserved_bytes for gpu in pool.gpus)),
        gib(sum(foreign)) if foreign else "?",
    )


def _device_name(pool: Pool) -> str:
    """The product without its vendor; a MIG profile says more than the product that it is a part of."""
    if "/mig-" in pool.resource or not pool.product:
        return pool.resource.partition("/")[2] or pool.resource
    return pool.product.replace("_", " ").removeprefix("NVIDIA-").removeprefix("AMD ")


def _notes(node: Node) -> tuple[str, ...]:
    """What keeps pods off the node, or what could not be read."""
    unready = () if node.ready else ("not Ready",)
    reserved = () if node.reserved_for is None else (f"reserved for tenant {node.reserved_for}",)
    return (*unready, *reserved, *node.problems)


def print_tenants(out: Console, tenants: tuple[Tenant, ...]) -> None:
    """One line per tenant."""
    if not tenants:
        out.print("no TenantQuota in the extender's view: every namespace is unlimited")
        return
    numbers = frozenset({"GPUS USED/LIMIT", "GUARANTEED", "HBM GIB USED/LIMIT", "GUARANTEED GIB"})
    made = table(
        "TENANT", "GPUS USED/LIMIT", "GUARANTEED", "HBM GIB USED/LIMIT", "GUARANTEED GIB", "NAMESPACES",
        right=numbers, wrap=frozenset({"NAMESPACES"}), names=frozenset({"TENANT"}),
    )  # fmt: skip
    for tenant in sorted(tenants, key=lambda t: t.tenant):
        made.add_row(
            tenant.tenant,
            used_of(str(tenant.used_gpus), _whole(tenant.limit_gpus)),
            _whole(tenant.guaranteed_gpus) or "-",
            used_of(gib(tenant.used_hbm_bytes), _gib(tenant.limit_hbm_bytes)),
            _gib(tenant.guaranteed_hbm_bytes) or "-",
            ", ".join(tenant.namespaces),
            style="yellow" if _at_limit(tenant) else "",
        )
    print_table(out, made)
    requests = [(tenant.tenant, told) for tenant in tenants if (told := _requests(tenant.requests)) is not None]
    if requests:
        out.print()
        out.print("Requests")
        print_facts(out, sorted(requests), indent=2)
    conflicts = [(tenant.tenant, conflict) for tenant in tenants for conflict in tenant.conflicts]
    if conflicts:
        out.print()
    for name, conflict in conflicts:
        out.print(f"NamespaceConflict at tenant {name}: {_conflict(conflict)}", soft_wrap=True)
    at_limit = [tenant.tenant for tenant in tenants if _at_limit(tenant)]
    if at_limit:
        out.print()
        out.print(f"At a limit: {plural(len(at_limit), 'tenant')} ({', '.join(sorted(at_limit))}).")


def _requests(use: RequestUse | None) -> str | None:
    """What is in flight, and what is left of each limit; None where nothing is limited and nothing in flight."""
    if use is None or not (use.limits or use.concurrent_requests):
        return None
    limits = [f"{each.limit}: {max(0, each.left):,.0f} of {each.at_most:,} left" for each in use.limits]
    return ", ".join((f"{use.concurrent_requests:,} in flight", *limits))


def _conflict(told: str) -> str:
    """``namespace: owner``, as the extender says it, in words; anything else stays as it is."""
    namespace, colon, owner = told.partition(": ")
    if not colon:
        return told
    return f"namespace {namespace} already belongs to quota {owner}; this entry is ignored"


def _whole(value: int | None) -> str | None:
    return None if value is None else str(value)


def _gib(value: int | None) -> str | None:
    return None if value is None else gib(value)


def _at_limit(tenant: Tenant) -> bool:
    """A limit of 0 is a limit that is reached; no limit never is."""
    pairs = ((tenant.used_gpus, tenant.limit_gpus), (tenant.used_hbm_bytes, tenant.limit_hbm_bytes))
    return any(limit is not None and used >= limit for used, limit in pairs)
