"""`Muon`: torch.optim.Muon's arguments, its bits on one process, and a sharding that fits the cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer

from kinemill.errors import KinemillError, StateError, UnsupportedError, UsageError
from kinemill.training.muon import arguments, drift, state
from kinemill.training.muon.counters import Counters, Stopwatch
from kinemill.training.muon.decide import Decision, choose
from kinemill.training.muon.digest import signed, tensor_digest
from kinemill.training.muon.groups import close_groups, open_groups
from kinemill.training.muon.layout import check_layout, flat_start, is_sharded, local, shape_of
from kinemill.training.muon.newton_schulz import Backend, orthogonalize
from kinemill.training.muon.plan import Matrix, Plan, listing, plan_hash
from kinemill.training.muon.share import Share
from kinemill.training.muon.site import MuonSettings
from kinemill.training.muon.topology import Rendezvous, Topology, discover

__all__ = ["Muon"]

log = logging.getLogger(__name__)


class Muon(Optimizer):
    """Muon for matrices, AdamW for the rest, over one process or thousands.

    The first nine arguments are torch.optim.Muon's: names, order, defaults. A list of parameters is stepped by
    Muon and must be 2-dimensional; `split_params` makes the two groups (``use_muon`` True and False) of a model.

    Args:
        params: Parameters, (name, parameter) pairs, or groups of either. Pass names: state dicts are keyed by them.
        lr: Learning rate.
        weight_decay: Decoupled, as in AdamW.
        momentum: Of the moving average of gradients.
        nesterov: Look ahead by one momentum step.
        ns_coefficients: (a, b, c); a sequence of triples, one an iteration; "quintic"; "polar_express".
        eps: Lower bound of the norm that a matrix is divided by.
        ns_steps: Newton-Schulz iterations.
        adjust_lr_fn: None or "original": lr * sqrt(max(1, rows / cols)). "match_rms_adamw": lr * 0.2 * sqrt(max(rows,
            cols)), so that AdamW's lr and weight decay carry over (Moonlight, arXiv:2502.16982).
        strategy: "node": the ranks of a node share the work, every node does all of it, nothing crosses the fabric.
            "world": all ranks share it. "replicated": every rank does all of it. "auto": world if the job has at
            most `node_threshold` nodes, else node; with no threshold, the cost model on the inventory's figures.
        node_threshold: For "auto"; None asks the inventory (`/etc/kinemill/muon.toml`).
        topology: Nodes and their ranks; None asks every rank which machine it is on.
        bucket_mb: MiB of bf16 updates in one exchange, over all owners.
        check_every: Compare a digest of all parameters over the world every so many steps; 0 never.
        adamw: lr, betas, eps, weight_decay of the groups with ``use_muon=False``; torch.optim.AdamW's defaults.
        ns_backend: Another Newton-Schulz, e.g. ``torch.compile(orthogonalize)`` or a kernel library's.

    Raises:
        UsageError: Arguments or parameters that cannot be; ranks that do not agree on them.
        UnsupportedError: Complex, sparse, 3-D without ``flatten=True`` in its group, or sharded in another way than
            by rows inside the node.
    """

    def __init__(  # noqa: PLR0917 - the nine positional arguments are torch.optim.Muon's
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: Any = (3.4445, -4.7750, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        strategy: str = "auto",
        node_threshold: int | None = None,
        topology: Topology | None = None,
        bucket_mb: float = 64,
        check_every: int = 200,
        adamw: dict[str, Any] | None = None,
        ns_backend: Backend | None = None,
        site: MuonSettings | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
            "use_muon": True,
        }
        self._adamw = arguments.adamw_defaults(adamw)
        self._built = False
        arguments.check_muon(defaults)
        if bucket_mb <= 0 or check_every < 0:
            raise UsageError(f"bucket_mb {bucket_mb} must be above 0, check_every {check_every} 0 or more")
        super().__init__(params, defaults)
        self.check_every, self._bucket_bytes = check_every, max(2, int(bucket_mb * (1 << 20)))
        self._broken: str | None = None
        self._closed = False
        self._check_due = False
        self.earlier_decisions: list[dict[str, Any]] = []
        self._build(strategy, node_threshold, topology, site, ns_backend or orthogonalize)

    # ---- construction

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is being made; afterwards the plan is fixed.

        Raises:
            StateError: The optimizer is made: make a new one and load this one's state.
        """
        if self._built:
            raise StateError(
                "muon: a group cannot be added later, owners are already fixed on every rank; "
                "make a new optimizer with all groups and load_state_dict into it"
            )
        group = dict(param_group)
        if not group.get("use_muon", True):
            group = {**self._adamw, **group}
        super().add_param_group(group)
        if not group.get("use_muon", True):
            for key in arguments.MUON_ONLY:
                self.param_groups[-1].pop(key, None)
        arguments.check_group(self.param_groups[-1], len(self.param_groups) - 1)

    def _build(
        self,
        strategy: str,
        node_threshold: int | None,
        topology: Topology | None,
        site: MuonSettings | None,
        backend: Backend,
    ) -> None:
        self.names = arguments.names(self.param_groups)
        """Parameter -> name, in group order: the keys of state dicts."""
        self._trainable = {n for p, n in self.names.items() if p.requires_grad}
        self.matrices: list[Matrix] = []
        params: list[Tensor] = []
        others: list[tuple[str, Tensor]] = []
        for number, group in enumerate(self.param_groups):
            for p in group["params"]:
                if group["use_muon"]:
                    dtype = str(p.dtype).removeprefix("torch.")
                    self.matrices.append(
                        Matrix(len(params), self.names[p], *shape_of(p), number, dtype, p.requires_grad)
                    )
                    params.append(p)
                else:
                    others.append((self.names[p], p))
        self.device = local(next(iter(self.names))).device
        live = dist.is_available() and dist.is_initialized()
        self.rank, world = (dist.get_rank(), dist.get_world_size()) if live else (0, 1)
        self.topology = topology or discover(self.rank, world, self.device)
        if self.rank not in self.topology.ranks:
            raise UsageError(f"muon: rank {self.rank} is not part of the topology {self.topology.nodes}")
        self.groups = open_groups(self.topology, self.rank, self.device)
        self.counters = Counters(Stopwatch(self.device), Stopwatch(self.device), Stopwatch(self.device))
        self.sharded = any(is_sharded(p) for p in params)
        try:
            self.decision = self._agree(strategy, node_threshold, site, others)
        except KinemillError:
            close_groups(self.groups)  # raised on all ranks, so all give them back
            raise
        self.share = Share(
            param_groups=self.param_groups,
            state=self.state,
            matrices=self.matrices,
            params=params,
            others=others,
            groups=self.groups,
            counters=self.counters,
            device=self.device,
            strategy=self.decision.strategy,
            sharded=self.sharded,
            bucket_bytes=self._bucket_bytes,
            backend=backend,
        )
        self._built = True
        if self.rank == self.topology.ranks[0]:
            implied = self.decision.implied_threshold
            log.info(
                "muon: %s over %s: %s; implied node_threshold %s; %d matrices, imbalance %.1f %%, padding %.1f %%",
                self.decision.strategy,
                self.topology.describe(),
                self.decision.reason,
                "unknown" if implied is None else implied,
                len(self.matrices),
                100 * self.plan.imbalance,
                100 * self.plan.padding,
            )

    @property
    def plan(self) -> Plan:
        """Owners and buckets."""
        return self.share.plan

    def _agree(
        self,
        strategy: str,
        node_threshold: int | None,
        site: MuonSettings | None,
        others: list[tuple[str, Tensor]],
    ) -> Decision:
        """Decide on the lowest rank, tell the others, and make sure that all ranks hold the same parameters.

        What one rank finds wrong is said on every rank: nobody is left waiting.
        """
        problem: KinemillError | None = None
        mine: Decision | None = None
        try:
            mine = self._decide(strategy, node_threshold, site)
            self._check_parameters(mine)
        except KinemillError as exc:
            problem = exc
        lines = listing(self.matrices, [(n, tuple(p.shape), str(p.dtype)) for n, p in others])
        shared = ("ns_steps", "nesterov", "ns_coefficients", "adjust_lr_fn")
        settings = {
            "bucket": self._bucket_bytes,
            "check": self.check_every,
            "groups": [{k: g[k] for k in shared if k in g} for g in self.param_groups],
            "sharded": self.sharded,
        }
        meeting = Rendezvous(self.topology.ranks, self.rank, self.groups.world, self.device)
        return arguments.settle(meeting, problem, mine, plan_hash(lines, settings), lines)

    def _decide(self, strategy: str, node_threshold: int | None, site: MuonSettings | None) -> Decision:
        origin = "the caller"
        if site is None:
            site, origin = arguments.load_site()
        muon = [g for g in self.param_groups if g["use_muon"]]
        return choose(
            strategy,
            nodes=len(self.topology.nodes),
            ranks=max(len(n) for n in self.topology.nodes),
            shapes=[(m.rows, m.cols) for m in self.matrices if m.trainable],
            node_threshold=node_threshold,
            site=site,
            origin=origin,
            steps=muon[0]["ns_steps"] if muon else 5,
            bucket_bytes=self._bucket_bytes,
        )

    def _check_parameters(self, decision: Decision) -> None:
        for p, name in self.names.items():
            check_layout(p, name, self.groups)
            if local(p).device != self.device:
                raise UsageError(f"parameter {name} is on {local(p).device}, others are on {self.device}")
        if not self.sharded:
            return
        matrices = {m.name for m in self.matrices}
        whole = [n for p, n in self.names.items() if n in matrices and not is_sharded(p)]
        if whole:
            raise UnsupportedError(
                f"parameter {whole[0]} is whole on each rank while others are sharded; shard all matrices "
                "(fully_shard on the root module too) or none"
            )
        if decision.strategy == "replicated":
            raise UnsupportedError(
                "strategy 'replicated' needs whole matrices on each rank, these are sharded: use node or world"
            )
        if decision.strategy == "world" and not self.topology.even:
            raise UnsupportedError(
                "strategy 'world' over sharded parameters needs as many ranks on every node, not "
                f"{self.topology.describe()}"
            )

    # ---- the step

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step all parameters that have a gradient; every rank calls it.

        Gradients must be reduced (DDP, FSDP2) before. A parameter without a gradient is left alone if its owner
        has none either. Clipping acts on what Muon throws away, the norm; it matters to the AdamW part only.

        Raises:
            UnavailableError: A rank died in the middle; restart from the last checkpoint.
            UsageError: Ranks have gradients for different parameters: they were not reduced.
            CorruptError: The digest found that replicas differ.
        """
        loss: float | None = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._ready()
        try:
            with self.counters.step.running():
                self.share.step_muon(self.share.vote())
                self.share.step_adamw()
            self.counters.steps += 1
            due = self.check_every and self.counters.steps % self.check_every == 0
            if due or self._check_due:
                self._check_due = False
                self.check()
        except BaseException as exc:  # memory that ran out and Ctrl-C included: some parameters moved, others did not
            self._broken = str(exc) if isinstance(exc, KinemillError) else f"{type(exc).__name__}: {exc}"
            raise
        return loss

    def _ready(self) -> None:
        if self._closed:
            raise StateError("muon: it was closed; make a new optimizer")
        if self._broken is not None:
            raise StateError(
                f"muon: an earlier step failed and may have left parameters half stepped: {self._broken}. "
                "Restart from the last checkpoint"
            )

    # ---- drift

    def check(self) -> int:
        """Compare all parameters' bits over the world; every rank calls it. Sixteen bytes a rank are exchanged.

        Returns:
            The digest.

        Raises:
            CorruptError: Replicas differ; it names ranks and the first parameter that does. Drain the odd node out.
        """
        self.counters.digests += 1
        return drift.compare({name: p for p, name in self.names.items()}, self.groups, "parameter")

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Complete state keyed by parameter name, on every rank; every rank calls it.

        Buffers of other owners come to host memory. For large models use `sharded_state` with
        torch.distributed.checkpoint, which moves nothing.
        """
        self._ready()
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = state.complete(self)
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def sharded_state(self) -> state.ShardedState:
        """This rank's part of the state, for torch.distributed.checkpoint: pass it as a value of the state dict."""
        self._ready()
        return state.ShardedState(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, on any number of nodes and ranks and under any strategy; every rank calls it.

        torch.optim.Muon's own state dict (keyed by number) loads too. Values are cast to each parameter's dtype.

        Raises:
            StateError: Names, shapes or groups do not fit, on any rank.
            CorruptError: The loaded state's digest is not the saved one, or replicas differ.
        """
        self._ready()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        state.load(self, state_dict)
        self._check_due = True  # parameters may be loaded after this: compare them once the next step is through
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def remember(self, earlier: dict[str, Any], note: str | None) -> None:
        """Keep the decision of the run that wrote a checkpoint, and say so if this run's differs."""
        self.earlier_decisions.append(earlier)
        if note:
            self.decision = replace(self.decision, reason=f"{self.decision.reason}; {note}")
            if self.rank == self.topology.ranks[0]:
                log.warning("muon: %s", note)

    def tracked(self) -> set[str]:
        """Names of parameters that have state: trainable when the optimizer was made, or now."""
        return self._trainable | {n for p, n in self.names.items() if p.requires_grad}

    def state_digest(self) -> int:
        """Digest of the whole optimizer state: the same under every strategy, node and rank count. Collective."""
        spread = torch.zeros((), dtype=torch.int64, device=self.device)
        copied = torch.zeros((), dtype=torch.int64, device=self.device)
        for name, key, tensor in state.tensors(self):
            part = tensor_digest(local(tensor), f"{name}.{key}", flat_start(tensor, self.groups)).to(self.device)
            if key == "momentum_buffer" or is_sharded(tensor):
                spread += part
            else:
                copied += part
        group = self.groups.node if self.sharded else self.share.group  # sharded: every node holds all rows once
        if group is not None:
            dist.all_reduce(spread, group=group)
        return signed(int((spread + copied).item()))

    def close(self) -> None:
        """Give the process groups back. The optimizer must not be used afterwards."""
        if self._broken is None and not self._closed:
            close_groups(self.groups)
        self._closed = True
