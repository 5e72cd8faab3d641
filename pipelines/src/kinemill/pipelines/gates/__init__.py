"""Gates: pure functions from facts and limits to findings. Steps act on what they say."""

from __future__ import annotations

from kinemill.pipelines.gates.measure import Converted, TopicMeasure
from kinemill.pipelines.gates.post import judge_converted
from kinemill.pipelines.gates.pre import judge_facts, worst

__all__ = ["Converted", "TopicMeasure", "judge_converted", "judge_facts", "worst"]
