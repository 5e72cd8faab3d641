"""One rank's share of a step: who votes, what it orthogonalises, how updates reach the parameters."""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.adamw import adamw as adamw_step

from kinemill.errors import UsageError
from kinemill.training.muon import arguments
from kinemill.training.muon.counters import Counters
from kinemill.training.muon.exchange import Job, lost, make_exchange, make_job
from kinemill.training.muon.groups import Groups
from kinemill.training.muon.layout import local
from kinemill.training.muon.newton_schulz import Backend, batch_limit
from kinemill.training.muon.plan import Matrix, make_plan

__all__ = ["Share"]

_AHEAD = 2  # buckets in flight: one on the fabric, one inside the node; each holds its gathered buffer
_OWNER = 1 << 16  # an owner's vote weighs this much more than the others' together


class Share:
    """Matrices, plan and exchange of one rank, and the step itself."""

    def __init__(
        self,
        *,
        param_groups: Sequence[dict[str, Any]],
        state: MutableMapping[Any, dict[str, Any]],
        matrices: Sequence[Matrix],
        params: Sequence[Tensor],
        others: Sequence[tuple[str, Tensor]],
        groups: Groups,
        counters: Counters,
        device: torch.device,
        strategy: str,
        sharded: bool,
        bucket_bytes: int,
        backend: Backend,
    ) -> None:
        """Args: the optimizer's groups, state and parameters; this rank's process groups; what was decided."""
        self.param_groups, self.state = param_groups, state
        self.matrices, self.params, self.others = matrices, params, others
        self.groups, self.counters, self.device = groups, counters, device
        self.strategy, self.sharded, self._backend = strategy, sharded, backend
        self.exchange = make_exchange(matrices, groups, counters, device, strategy=strategy, sharded=sharded)
        self.plan = make_plan(matrices, self.exchange.positions, bucket_bytes)
        counters.imbalance, counters.padding = self.plan.imbalance, self.plan.padding

    # ---- who keeps what

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The ranks that exchange updates with this one; None where it works alone."""
        if self.strategy == "world":
            return self.groups.world
        return self.groups.node if self.strategy == "node" else None

    @property
    def owners(self) -> dist.ProcessGroup | None:
        """The ranks over which momentum is spread in whole buffers; None where this rank has all, or rows of all."""
        return None if self.sharded or self.exchange.positions == 1 else self.group

    def keeps(self, index: int) -> bool:
        """Whether this rank keeps momentum of a matrix: its owner does, or everybody their rows of it."""
        return self.sharded or self.plan.owner[index] == self.exchange.position

    def momentum_buffer(self, index: int) -> Tensor:
        """Momentum of a matrix that this rank keeps, made of zeros when first asked for."""
        p = self.params[index]
        if "momentum_buffer" not in self.state[p]:
            self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        buffer: Tensor = self.state[p]["momentum_buffer"]
        return buffer

    def adamw_state(self, p: Tensor) -> dict[str, Tensor]:
        """AdamW's state of a parameter, made of zeros when first asked for."""
        found: dict[str, Tensor] = self.state[p]
        if not found:
            found["step"] = torch.zeros((), dtype=torch.float32)
            found["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            found["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return found

    # ---- the vote

    def vote(self) -> list[bool]:
        """Which matrices are stepped: those whose owner has a gradient. One small all-reduce, also from idle ranks.

        Raises:
            UsageError: Some rank has a gradient that the owner has not, or refuses its gradients.
        """
        has = [p.grad is not None for p in self.params]
        problem = arguments.check_grads(self.params, [m.name for m in self.matrices]) or arguments.check_grads(
            [p for _, p in self.others], [n for n, _ in self.others]
        )
        group = self.group
        if group is None:
            if problem is not None:
                raise problem
            return has
        size = dist.get_world_size(group)
        weight = [1 if self.sharded or not self.keeps(i) else 1 + _OWNER for i in range(len(has))]
        words = [int(h) * w for h, w in zip(has, weight, strict=True)]
        votes = torch.tensor([*words, int(problem is not None)], dtype=torch.int32).to(self.device)
        kind = "node" if group is self.groups.node else "world"
        self.counters.bytes_out[kind] += 2 * votes.nbytes * (size - 1) // size
        try:
            dist.all_reduce(votes, group=group)
        except RuntimeError as exc:
            raise lost(self.groups.rank, "the vote on gradients", exc) from exc
        *counted, troubled = votes.tolist()
        if problem is not None:
            raise problem
        if troubled:
            raise UsageError("muon: another rank refused its gradients; its own message says why")
        for i, count in enumerate(counted):
            if 0 < count < (size if self.sharded else _OWNER):
                raise UsageError(
                    f"muon: rank {self.groups.rank}: {count} of {size} ranks have a gradient for "
                    f"{self.matrices[i].name}, and not the one that steps it: gradients were not reduced over all "
                    "ranks before step()"
                )
        return [count > 0 for count in counted]

    # ---- the step

    def step_muon(self, live: Sequence[bool]) -> None:
        """Orthogonalise bucket by bucket; while one is computed, those before it travel."""
        jobs: list[Job | None] = []
        for number, bucket in enumerate(self.plan.buckets):
            made = make_job(number, bucket.slots, self.matrices, live)
            if made.slot:
                jobs.append(made)
        flying: deque[Job] = deque()
        waiting: Job | None = None
        for job in [*jobs, None]:
            if job is not None and self.sharded:
                self.exchange.prepare(job, {i: self._momentum(i) for slot in job.slots for i in slot})
            if waiting is not None:
                self._compute_and_send(waiting, flying)
            waiting = job
        for earlier in flying:
            self.exchange.advance(earlier)
        for earlier in flying:
            self._land(earlier)

    def _compute_and_send(self, job: Job, flying: deque[Job]) -> None:
        if self.exchange.positions == 1:
            self._compute(job, None)
            return
        send = torch.zeros(job.slot, dtype=torch.bfloat16, device=self.device)
        self._compute(job, send)
        for earlier in flying:
            self.exchange.advance(earlier)
        self.exchange.start(job, send)
        flying.append(job)
        if len(flying) > _AHEAD:
            self._land(flying.popleft())

    def _momentum(self, index: int) -> Tensor:
        """Move the momentum (this rank's rows of it) and return what is to be orthogonalised, as a matrix."""
        m, p = self.matrices[index], self.params[index]
        if p.grad is None:
            raise UsageError(f"muon: rank {self.groups.rank}: no gradient for {m.name}")
        group = self.param_groups[m.group]
        buffer = local(self.momentum_buffer(index))
        grad = local(p.grad).to(buffer.dtype)
        buffer.lerp_(grad, 1 - group["momentum"])
        # Without Nesterov the buffer itself is returned: callers copy it into a batch, nothing works on it in place.
        update = grad.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer
        return update.reshape(update.size(0), m.cols)

    def _compute(self, job: Job, send: Tensor | None) -> None:
        """Orthogonalise this position's matrices, equal shapes together, into `send` or onto the parameters."""
        mine = job.slots[self.exchange.position]
        at = 0
        while at < len(mine):
            batch = self._batch(mine[at:])
            at += len(batch)
            m = self.matrices[batch[0]]
            group = self.param_groups[m.group]
            stack = torch.empty(len(batch), m.rows, m.cols, dtype=torch.bfloat16, device=self.device)
            for i, index in enumerate(batch):
                if not self.exchange.source(job, index, stack[i]):
                    stack[i].copy_(self._momentum(index))
            with self.counters.ns.running():
                done = self._backend(stack, arguments.triples(group), group["eps"])
            for i, index in enumerate(batch):
                if send is None:
                    self._apply(index, done[i])
                else:
                    begin = job.where[index]
                    send[begin : begin + m.numel].view(m.rows, m.cols).copy_(done[i])

    def _batch(self, queue: Sequence[int]) -> list[int]:
        """The next matrices that can be orthogonalised together."""
        first = self.matrices[queue[0]]
        limit = batch_limit(first.rows, first.cols, self.device)
        batch = []
        for index in queue[:limit]:
            if self.matrices[index].kind != first.kind:
                break
            batch.append(index)
        return batch

    def _land(self, job: Job) -> None:
        self.exchange.finish(job)
        for position, slot in enumerate(job.slots):
            for index in slot:
                self._apply(index, self.exchange.result(job, position, index))

    def _apply(self, index: int, update: Tensor) -> None:
        m, p = self.matrices[index], local(self.params[index])
        group = self.param_groups[m.group]
        lr = float(group["lr"])
        p.mul_(1 - lr * group["weight_decay"])
        p.add_(update.reshape(p.shape), alpha=-arguments.adjusted_lr(lr, group["adjust_lr_fn"], m))

    def step_adamw(self) -> None:
        """torch's AdamW on the groups that are not Muon's; elementwise, so on local rows where sharded."""
        for group in self.param_groups:
            live = [] if group["use_muon"] else [p for p in group["params"] if p.grad is not None]
            if not live:
                continue
            states = [self.adamw_state(p) for p in live]
            adamw_step(
                [local(p) for p in live],
                [local(p.grad) for p in live],
                [local(s["exp_avg"]) for s in states],
                [local(s["exp_avg_sq"]) for s in states],
                [],
                [s["step"] for s in states],
                amsgrad=False,
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                maximize=False,
            )
