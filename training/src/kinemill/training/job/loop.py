"""One rank of the reference job, from the first import to the exit code.

The order matters and is the part to copy: evidence first, then the process group, then the attempt number (the folder
moves under it), then the checkpoint, then the data at the position that the checkpoint holds, and only then steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinemill.contracts import AttemptMeta, AttemptOutcome, ExitCode
from kinemill.errors import ConfigError, KinemillError
from kinemill.logs import bind
from kinemill.training.attempts import (
    Evidence,
    Verdict,
    claim,
    count_restarts,
    finish_meta,
    history,
    root_cause,
    stuck,
    write_meta,
    write_verdict,
)
from kinemill.training.attempts.evidence import ENV_LAUNCH
from kinemill.training.checkpoint import Checkpointer, PosixRunFolder, open_run
from kinemill.training.job.config import JobConfig
from kinemill.training.job.evaluate import evaluate
from kinemill.training.job.policy import Policy
from kinemill.training.job.source import Batch, Source, Statistics
from kinemill.training.launcher.torchrun import ENV_FIRST_ATTEMPT, ENV_STORE

__all__ = ["OpenSource", "run_rank"]

log = logging.getLogger(__name__)

OpenSource = Callable[[JobConfig, int, int], Source]
"""(config, rank, world size) to this rank's data."""

INIT_TIMEOUT = timedelta(minutes=10)


def run_rank(config: JobConfig, open_source: OpenSource) -> int:
    """Run this rank to its end and leave the evidence; the exit code is for `sys.exit`.

    Returns:
        0 where the run is finished or was stopped on request (then the launch's verdict says 75); 1 on a fault.
    """
    run = open_run(config.run)
    evidence = Evidence.begin(run.root / "attempts" / "early" / f"by-hand-{os.getpid()}")
    evidence.enable()
    try:
        return _Rank(config, run, evidence).run(open_source)
    except BaseException as exc:  # the rank's own edge: every ending leaves its report
        evidence.failed(exc)
        log.exception("rank %s failed", os.environ.get("RANK", "0"))
        if isinstance(exc, KinemillError) and not exc.transient:
            _pronounce(run, Verdict(exc.exit_code, str(exc)))
        # Not sys.exit: threads that wait for a dead peer inside a collective would be joined for ever.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.FINDING)


def _pronounce(run: PosixRunFolder, verdict: Verdict) -> None:
    launch = os.environ.get(ENV_LAUNCH)
    if launch:
        write_verdict(run.root / "attempts", launch, verdict)


@dataclass(slots=True)
class _Session:
    """What the steps work on."""

    policy: Policy
    model: nn.Module
    """The policy, wrapped where there are several ranks."""
    optimizer: Any
    statistics: Statistics
    source: Source
    saver: Checkpointer
    put: Callable[[dict[str, Any]], None]
    """Appends a row to the attempt's metrics."""

    def state(self) -> dict[str, Any]:
        """Everything that a later attempt needs, the data position included."""
        return {
            "model": self.policy.state_dict(),
            "optimizer": self.optimizer.sharded_state().state_dict(),
            "statistics": self.statistics.state_dict(),
            "data": self.source.state_dict(),
        }


class _Rank:
    """One attempt of one rank."""

    def __init__(self, config: JobConfig, run: PosixRunFolder, evidence: Evidence) -> None:
        self.config, self.run_folder, self.evidence = config, run, evidence
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.stop_signal: int | None = None
        self.attempt = 0
        self.folder = Path()
        self._said = contextlib.ExitStack()
        """Fields of every log line from the claim on; open to the end, so that the line of a failure has them too."""

    def run(self, open_source: OpenSource) -> int:
        self._catch_signals()
        self._init_group()
        config = self.config
        self.attempt = claim(self.run_folder)
        self.folder = self.run_folder.attempt_path(self.attempt)
        self.evidence.move_to(self.folder, self.rank)
        self._said.enter_context(
            bind(
                run_id=self.run_folder.root.name,
                attempt=self.attempt,
                node=socket.gethostname(),
                job_id=os.environ.get("SLURM_JOB_ID"),
            )
        )
        saver = Checkpointer(self.run_folder, attempt=self.attempt, keep=config.train.keep)
        restored = saver.restore()
        self._describe(saver.published_step)
        self._refuse_if_stuck(saver.published_step)
        with contextlib.closing(open_source(config, self.rank, self.world)) as source:
            torch.manual_seed(config.train.seed)
            if restored is not None:
                statistics = Statistics(**restored.state["statistics"])
                source.load_state_dict(restored.state["data"])
            else:
                statistics = source.statistics()
            policy = Policy(
                cameras=source.cameras,
                state_dim=len(statistics.state_mean),
                action_dim=len(statistics.action_mean),
                chunk_steps=config.data.chunk_steps,
                **dataclasses.asdict(config.policy, dict_factory=_without_dropout),
            )
            optimizer = _optimizer(policy, config)
            first = 0
            if restored is not None:
                policy.load_state_dict(restored.state["model"])
                optimizer.load_state_dict(restored.state["optimizer"])
                first = restored.saved.step
            model: nn.Module = policy
            if self.world > 1:
                model = nn.parallel.DistributedDataParallel(policy)
            with self._metrics() as put:
                session = _Session(policy, model, optimizer, statistics, source, saver, put)
                put(
                    {
                        "event": "start",
                        "resume_step": first if restored else None,
                        "skipped": list(restored.skipped) if restored else [],
                        "world_size": self.world,
                        "parameters": sum(p.numel() for p in policy.parameters()),
                        **self._restarts(),
                    }
                )
                step = self._train(first, session)
                if step < config.train.steps:
                    return self._stopped(step, session)
                if saver.published_step != step:  # else the run was finished before, and is only judged again
                    saver.save_now(step, session.state())
                    put({"event": "published", "step": step})
                self._judge(step, session)
        self._finish(AttemptOutcome.FINISHED, step)
        saver.close()
        self._leave()
        return ExitCode.OK

    # ---- the steps

    def _train(self, first: int, session: _Session) -> int:
        """Steps `first` + 1 to the end; returns the number of steps done, fewer where somebody asked to stop."""
        saver, put = session.saver, session.put
        config = self.config
        batches = session.source.batches()
        told = saver.published_step
        step = first
        while step < config.train.steps:
            began = time.monotonic()
            batch = next(batches)
            loaded = time.monotonic()
            _set_rates(session.optimizer, step, config)
            loss = _loss(session.model, batch, session.statistics, step=step, config=config, rank=self.rank)
            session.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            session.optimizer.step()
            step += 1
            self.evidence.beat(step)
            self._inject_fault(step)
            stop = saver.poll(stop=self.stop_signal is not None)
            if saver.published_step != told:
                told = saver.published_step
                put({"event": "published", "step": told})
            if step % config.train.log_every == 0 or step == config.train.steps:
                now = time.monotonic()
                put({"step": step, "loss": _mean_over_ranks(loss), "data_s": loaded - began, "step_s": now - began})
            if stop:
                return step
            if step % config.train.checkpoint_every == 0 and step < config.train.steps:
                saver.save(step, session.state())
        return step

    def _judge(self, step: int, session: _Session) -> None:
        held_out = session.source.held_out(self.config.train.held_out_samples)
        result = evaluate(session.policy, session.statistics, held_out)
        session.put(
            {
                "event": "evaluation",
                "step": step,
                **dataclasses.asdict(result),
                "against_mean": result.against_mean,
                "blank_against_seeing": result.blank_against_seeing,
            }
        )
        totals = self._totals(session.source)
        session.put({"event": "finished", "step": step, "digest": _digest(session.policy), **totals})

    def _inject_fault(self, step: int) -> None:
        """The configured fault, once in the life of the run, whichever attempt gets there first."""
        fault = self.config.fault
        if self.rank != fault.rank or step != fault.step:
            return
        with contextlib.suppress(FileExistsError):
            (self.run_folder.root / "attempts" / "fault-injected").touch(exist_ok=False)
            log.warning("injected fault: SIGKILL for rank %d at step %d", self.rank, step)
            os.kill(os.getpid(), signal.SIGKILL)

    # ---- beginning

    def _catch_signals(self) -> None:
        def asked(signum: int, _frame: FrameType | None) -> None:
            self.stop_signal = signum

        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, asked)

    def _init_group(self) -> None:
        if "RANK" not in os.environ:
            return
        store = os.environ.get(ENV_STORE)
        if store:
            # A new file for each restart: the old one still holds the addresses of ranks that are gone.
            restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}/ranks-{restart}",
                rank=self.rank,
                world_size=self.world,
                timeout=INIT_TIMEOUT,
            )
        else:
            dist.init_process_group("gloo", timeout=INIT_TIMEOUT)
        dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)  # no public name for it in 2.13
        if dump is not None:
            self.evidence.dump_flight_with(lambda: bytes(dump(includeCollectives=True, onlyActive=False)))

    def _describe(self, resume_step: int | None) -> None:
        hosts: list[Any] = [socket.gethostname()]
        if dist.is_initialized():
            hosts = [None] * self.world
            dist.all_gather_object(hosts, socket.gethostname())
        if self.rank == 0:
            write_meta(
                self.folder,
                AttemptMeta(
                    number=self.attempt,
                    job_id=os.environ.get("SLURM_JOB_ID"),
                    slurm_restart_count=_number("SLURM_RESTART_COUNT"),
                    torchelastic_restart_count=_number("TORCHELASTIC_RESTART_COUNT"),
                    hosts=tuple(dict.fromkeys(hosts)),
                    world_size=self.world,
                    resume_step=resume_step,
                    code_version=_code_version(),
                    started_at_ns=time.time_ns(),
                ),
            )

    def _restarts(self) -> dict[str, Any]:
        """What the run's restarts came to so far, for the loss curve and the metrics of rank 0."""
        if self.rank != 0:
            return {}
        found = count_restarts(history(self.run_folder))
        found.show()
        return {"restarts": found.by_kind, "lost_step_s": found.lost_s}

    def _refuse_if_stuck(self, resume_step: int | None) -> None:
        """End the launch where the attempts before made no progress; every rank hears the same."""
        answer: list[str | None] = [None]
        if self.rank == 0:
            before = [m for m in history(self.run_folder) if m.number < self.attempt]
            since = _number(ENV_FIRST_ATTEMPT) or 1
            answer = [stuck(before, resume_step, limit=self.config.launch.stuck_after, since=since)]
            cause = root_cause(self.run_folder.attempt_path(before[-1].number)) if before else None
            if answer[0] is not None and cause is not None:
                answer = [f"{answer[0]}. The last one: {cause}"]
        if dist.is_initialized():
            dist.broadcast_object_list(answer, src=0)
        if answer[0] is not None:
            self._finish(AttemptOutcome.NO_PROGRESS, resume_step)
            raise _NoProgressError(answer[0])

    # ---- ending

    def _stopped(self, step: int, session: _Session) -> int:
        session.saver.save_now(step, session.state())
        session.put({"event": "stopped", "step": step})
        self._finish(AttemptOutcome.PREEMPTED, step)
        _pronounce(
            self.run_folder,
            Verdict(
                ExitCode.TRANSIENT, f"stopped on request; step {step} is saved: the same command goes on from there"
            ),
        )
        session.saver.close()
        self._leave()
        return ExitCode.OK

    def _finish(self, outcome: AttemptOutcome, step: int | None) -> None:
        if self.rank == 0:
            finish_meta(self.folder, outcome, ended_at_ns=time.time_ns(), last_step=step)

    def _leave(self) -> None:
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
        self.evidence.close()

    @contextlib.contextmanager
    def _metrics(self) -> Any:
        """A function that appends one line to the attempt's loss curve (rank 0 only)."""
        if self.rank != 0:
            yield lambda row: None
            return
        with (self.folder / "metrics.jsonl").open("a", buffering=1) as out:

            def put(row: dict[str, Any]) -> None:
                finite = {k: v if not isinstance(v, float) or math.isfinite(v) else None for k, v in row.items()}
                out.write(json.dumps({"attempt": self.attempt, "t_ns": time.time_ns(), **finite}) + "\n")

            yield put

    def _totals(self, source: Source) -> dict[str, float]:
        """The source's counters, summed over all ranks."""
        mine = source.counters()
        if not dist.is_initialized():
            return mine
        names = sorted(mine)
        values = torch.tensor([mine[n] for n in names], dtype=torch.float64)
        dist.all_reduce(values)
        return dict(zip(names, values.tolist(), strict=True))


class _NoProgressError(KinemillError):
    """Trying again makes no sense; a person must look."""


def _optimizer(policy: Policy, config: JobConfig) -> Any:
    from kinemill.training import Muon, split_params

    return Muon(
        split_params(policy),
        lr=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        momentum=config.optimizer.momentum,
        strategy=config.optimizer.strategy,
        adamw={"lr": config.optimizer.adamw_lr},
    )


def _set_rates(optimizer: Any, step: int, config: JobConfig) -> None:
    """Ten steps of warm-up, then cosine to a tenth: a function of the step, so that a restart needs no scheduler."""
    progress = step / max(1, config.train.steps)
    scale = min(1.0, (step + 1) / 10) * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
    for group in optimizer.param_groups:
        base = config.optimizer.lr if group.get("use_muon") else config.optimizer.adamw_lr
        group["lr"] = base * scale


def _loss(model: nn.Module, batch: Batch, statistics: Statistics, *, step: int, config: JobConfig, rank: int) -> Tensor:
    state = (batch.state - statistics.state_mean) / statistics.state_std
    target = (batch.action - statistics.action_mean) / statistics.action_std
    # Drawn from (seed, step, rank), so that a restarted attempt draws the same without a saved generator.
    draw = torch.Generator().manual_seed(hash((config.train.seed, step, rank)) & 0x7FFFFFFF)
    known = (torch.rand(len(state), 1, generator=draw) >= config.policy.state_dropout).float()
    difference = nn.functional.smooth_l1_loss(model(batch.frames, state, known), target, reduction="none")
    valid = batch.valid.unsqueeze(-1)
    return (difference * valid).sum() / (valid.sum() * target.shape[-1]).clamp(min=1)


def _mean_over_ranks(loss: Tensor) -> float:
    value = loss.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return float(value)


def _without_dropout(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in fields if name != "state_dropout"}


def _digest(policy: nn.Module) -> str:
    """First 16 hex digits of the sha256 over all weights: equal runs end equal to the last bit."""
    digest = hashlib.sha256()
    for name, value in policy.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError as exc:
        raise ConfigError(f"${name} is '{text}', expected a number") from exc


def _code_version() -> str:
    from importlib.metadata import version

    return f"kinemill-training {version('kinemill-training')}, torch {torch.__version__}"
