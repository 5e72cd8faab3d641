"""What `SparseWindows` and `Clips` share: sources, fields, the engine of each process, reading samples."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.utils.data

from kinemill.errors import UsageError
from kinemill.loaders.batch import BatchBuffer, Samples, finish
from kinemill.loaders.engine import Engine, Job
from kinemill.loaders.faults import Faults
from kinemill.loaders.fields import Field, known_topics, resolve_fields
from kinemill.loaders.index import SampleIndex, Where
from kinemill.loaders.manifest import Manifest, ManifestRow
from kinemill.loaders.memory import Blocks
from kinemill.loaders.normaliser import Normaliser
from kinemill.loaders.order import Order
from kinemill.loaders.quarantine import spool_of
from kinemill.loaders.sampler import BatchSampler
from kinemill.loaders.settings import ReadSettings
from kinemill.loaders.stores import store_for, use_store
from kinemill.loaders.transforms import Transform
from kinemill.loaders.windows import Window
from kinemill.manifest.statistics import TopicStatistics, merge, parse_statistics

if TYPE_CHECKING:
    from kinemill.contracts import Store

__all__ = ["WindowedDataset"]


class WindowedDataset(torch.utils.data.Dataset[dict[str, Any]]):
    """A map-style data set of windows of episodes, read by sample number. Use `SparseWindows` or `Clips`.

    A sample is a dictionary: each window's key (frames (T, H, W, 3) uint8, rows (T, columns) float32),
    `<key>_is_pad` (T,) bool, `valid` (False: masked), `index`, `anchor_ns`, `episode_id`, `instruction`, `task`.
    """

    def __init__(
        self,
        sources: Manifest | Sequence[Manifest],
        windows: Mapping[str, Window],
        count: Callable[[Any, Any, Any], Any],
        *,
        store: Store | str | None = None,
        weights: Sequence[float] | None = None,
        epoch_samples: int | None = None,
        topics: Mapping[str, str] | None = None,
        resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        pixels: str = "rgb",
        normalise: str | Mapping[str, str] | None = None,
        statistics: Mapping[str, TopicStatistics] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        assume: Mapping[str, tuple[int, ...]] | None = None,
        where: Where | None = None,
        samples_per_fetch: int = 1,
        anchor_hz: float | None = None,
        text: bool = True,
        times: bool = False,
        seed: int = 0,
        run_folder: str | Path | None = None,
        rank: int = 0,
        read: ReadSettings | None = None,
        decoder: str = "pyav",
    ) -> None:
        """See `Options` for the arguments.

        Raises:
            ConfigError: A topic that no episode of the manifests has.
            UsageError: Settings that contradict each other.
        """
        self.sources = [sources] if isinstance(sources, Manifest) else list(sources)
        if not self.sources:
            raise UsageError("no manifest given")
        if samples_per_fetch < 1:
            raise UsageError(f"samples_per_fetch {samples_per_fetch}: 1 or more")
        self.windows = dict(windows)
        self.seed = seed
        self.weights = list(weights) if weights is not None else None
        self.epoch_samples = epoch_samples
        self.unit = samples_per_fetch
        self.text = text
        self.times = times
        self.read_settings = read or ReadSettings()
        self._anchor_hz = anchor_hz
        self._decoder = decoder
        self._pixels = pixels
        self._run_folder = str(run_folder) if run_folder is not None else None
        self._rank = rank
        self._store_url = _url_of(store, self.sources)
        self.indices = [SampleIndex(source, count, where=where, unit=samples_per_fetch) for source in self.sources]
        self._bases: list[int] | None = None
        self._engine: Engine | None = None
        self._blocks = Blocks()
        sizes = dict.fromkeys(windows, resize) if isinstance(resize, tuple) else dict(resize or {})
        self._options: dict[str, Any] = {
            "topics": dict(topics or {}),
            "pixels": pixels,
            "transforms": dict(transforms or {}),
            "assume": dict(assume or {}),
        }
        self._resize = sizes
        self._resize_all = isinstance(resize, tuple)
        self.statistics = dict(statistics) if statistics is not None else self._merged_statistics()
        self._normalise = normalise
        self.fields: tuple[Field, ...] = self._resolve()

    # ---- set up

    def _merged_statistics(self) -> dict[str, TopicStatistics]:
        """Of the mixture, by topic; only topics that every source has statistics of."""
        told = [parse_statistics(source.metadata) for source in self.sources]
        common = set.intersection(*(set(one) for one in told))
        return {topic: merge([one[topic] for one in told], self.weights) for topic in sorted(common)}

    def _resolve(self) -> tuple[Field, ...]:
        filled = [index for index in self.indices if len(index.manifest)]
        if not filled:
            return ()  # an empty set has no samples, so nobody asks for shapes
        row = next(((index, row) for index in filled if (row := index.first_row()) is not None), (filled[0], 0))
        topics = self._options["topics"]
        facts = known_topics(row[0].manifest.row(row[1]), self.sources, (topics.get(k, k) for k in self.windows))
        resize = self._resize
        if self._resize_all:
            cameras = {topic for topic, fact in facts.items() if fact.kind == "video"}
            resize = {k: v for k, v in resize.items() if topics.get(k, k) in cameras or topics.get(k, k) not in facts}
        return resolve_fields(self.windows, facts, resize=resize, normalisers=self._normalisers(facts), **self._options)

    def _normalisers(self, facts: Mapping[str, Any]) -> dict[str, Normaliser]:
        if self._normalise is None:
            return {}
        topics = self._options["topics"]
        if isinstance(self._normalise, str):
            asked = {
                k: self._normalise for k in self.windows if (f := facts.get(topics.get(k, k))) and f.kind != "video"
            }
        else:
            asked = dict(self._normalise)
        made = {}
        for key, mode in asked.items():
            found = self.statistics.get(topics.get(key, key))
            if found is None:
                raise UsageError(
                    f"normalise: no statistics of '{topics.get(key, key)}' in the manifest; pass statistics=, or "
                    "compute them with `kinemill.loaders.compute_statistics`"
                )
            made[key] = Normaliser.make(found, mode)
        return made

    def normaliser(self, key: str) -> Normaliser | None:
        """Of one key; its `undo` turns a policy's output back into the topic's units."""
        return next((one.normaliser for one in self.fields if one.key == key), None)

    @property
    def transforms(self) -> dict[str, Transform]:
        """By key. May be set later, for example to none for evaluation; workers started before keep theirs."""
        return dict(self._options["transforms"])

    @transforms.setter
    def transforms(self, new: Mapping[str, Transform]) -> None:
        self._options["transforms"] = dict(new)
        self.fields = self._resolve()
        self._engine = None

    # ---- numbers

    @property
    def identity(self) -> str:
        """Names data and windows in a checkpoint, so that a resume with others is refused."""
        import hashlib

        text = "|".join([*(s.identity for s in self.sources), repr(sorted(self.windows.items())), str(self.weights)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def bases(self) -> list[int]:
        """First sample number of each source."""
        if self._bases is None:
            self._bases = np.cumsum([0, *(len(index) for index in self.indices)]).tolist()
        return self._bases

    def __len__(self) -> int:
        return self.bases[-1]

    def locate(self, sample: int) -> Job:
        """Where a sample lies.

        Raises:
            IndexError: No such sample.
        """
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        source = int(np.searchsorted(self.bases, sample, side="right")) - 1
        row, turn = self.indices[source].find(sample - self.bases[source])
        return Job(sample, source, row, self.step_of(turn))

    def step_of(self, turn: int) -> int:
        """The anchor's step of an episode's sample number `turn`."""
        raise NotImplementedError

    def row(self, source: int, row: int) -> ManifestRow:
        """A row of a source."""
        return self.sources[source].row(row)

    def order(self, *, shuffle: bool = True) -> Order:
        """The epoch's sequence, by this data set's seed and mixture weights."""
        lengths = [index.units for index in self.indices]
        units = None if self.epoch_samples is None else self.epoch_samples // self.unit
        if self.weights is not None:
            # a source that nothing passes a filter in gives nothing
            weights = [w if n else 0.0 for w, n in zip(self.weights, lengths, strict=True)]
            return Order.mix(lengths, weights, units=units, seed=self.seed, unit=self.unit, shuffle=shuffle)
        return Order.mix(lengths, units=units, seed=self.seed, unit=self.unit, shuffle=shuffle)

    # ---- reading

    @property
    def engine(self) -> Engine:
        """Of this process."""
        if self._engine is None or self._engine.pid != os.getpid():
            settings = self.read_settings
            spool = spool_of(self._run_folder, self._rank) if self._run_folder else None
            faults = Faults(
                spool=spool,
                max_share=settings.max_masked_share,
                min_samples=settings.min_samples,
                max_in_a_row=settings.max_in_a_row,
            )
            self._engine = Engine(
                store_for(self._store_url, settings),
                self.fields,
                self.row,
                settings=settings,
                faults=faults,
                anchor_hz=self._anchor_hz,
                decoder=self._decoder,
                pixels=self._pixels,
                seed=self.seed,
                unit=self.unit,
                shape_frames=any(one.video and one.frame_size != one.source_size for one in self.fields),
            )
        return self._engine

    def read(self, samples: Sequence[int], *, ahead: Sequence[int] = (), epoch: int = 0) -> Samples:
        """Read samples into one new batch.

        Args:
            samples: Numbers.
            ahead: What this process reads next.
            epoch: For transforms.
        """
        buffer = BatchBuffer(self.fields, len(samples), times=self.times, blocks=self._blocks)
        jobs = [self.locate(int(s)) for s in samples]
        later = [self.locate(int(s)) for s in ahead]
        found = self.engine.read(jobs, buffer.slots, ahead=later, epoch=epoch)
        return finish(buffer, found, samples, text=self.text)

    def __getitem__(self, sample: int) -> dict[str, Any]:
        found: dict[str, Any] = self.read([int(sample)])[0]
        return found

    def __getitems__(self, samples: Sequence[int]) -> Samples:
        """What DataLoader calls with a whole batch; see `kinemill.loaders.collate`."""
        return self.read(samples, ahead=getattr(samples, "ahead", ()), epoch=getattr(samples, "epoch", 0))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": None, "_blocks": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _blocks=Blocks())

    def sampler(
        self,
        batch_size: int,
        *,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        tail: str = "drop",
        workers: int = 0,
    ) -> BatchSampler:
        """A batch sampler of one rank; see `kinemill.loaders.sampler.BatchSampler`."""
        return BatchSampler(
            self.order(shuffle=shuffle),
            batch_size=batch_size,
            rank=rank,
            world=world,
            tail=tail,
            ahead=max(1, workers),
            identity=self.identity,
        )


def _url_of(store: Store | str | None, sources: Sequence[Manifest]) -> str:
    if isinstance(store, str):
        return store
    if store is not None:
        return use_store(store)
    urls = {source.store_url for source in sources} - {None}
    if len(urls) != 1:
        raise UsageError(
            "store=: say where the episodes lie" + (f" ({len(urls)} stores among the manifests)" if urls else "")
        )
    return str(urls.pop())
