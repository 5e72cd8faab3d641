"""The policy, its loss and its judge, on tensors small enough to know the answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kinemill.training import Muon, split_params
from kinemill.training.job.evaluate import evaluate
from kinemill.training.job.policy import Encoder, Policy
from kinemill.training.job.source import Batch, Statistics


def policy(**sizes: int) -> Policy:
    torch.manual_seed(0)
    return Policy(cameras=2, state_dim=3, action_dim=2, chunk_steps=4, channels=4, keypoints=4, hidden=16, **sizes)


def batch(n: int = 5) -> Batch:
    g = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (n, 2, 12, 16, 3), dtype=torch.uint8, generator=g)
    valid = torch.ones(n, 4, dtype=torch.bool)
    return Batch(frames, torch.randn(n, 3, generator=g), torch.randn(n, 4, 2, generator=g), valid)


def test_shapes() -> None:
    b = batch()
    assert policy()(b.frames, b.state, torch.ones(5, 1)).shape == (5, 4, 2)


def test_an_encoder_tells_where_a_spot_is() -> None:
    # given an encoder whose single map is the brightness, sharply
    encoder = Encoder(1, 1)
    with torch.no_grad():
        for layer in encoder.layers:
            if isinstance(layer, nn.Conv2d):
                layer.weight.zero_()
                layer.bias.zero_()
                layer.weight[:, :, layer.weight.shape[2] // 2, layer.weight.shape[3] // 2] = 1.0
        encoder.temperature.fill_(20.0)
    # when a spot moves from the left to the right half
    points = []
    for x in (2, 13):
        frame = -torch.ones(1, 3, 12, 16)
        frame[:, :, 6, 2 * (x // 2)] = 1.0
        points.append(encoder(frame)[0])
    # then its x follows, its y stays, in -1..1
    assert points[0][0] < -0.5
    assert points[1][0] > 0.4
    assert torch.allclose(points[0][1], points[1][1], atol=1e-4)


def test_an_unknown_state_changes_nothing() -> None:
    b, net = batch(), policy()
    unknown = torch.zeros(5, 1)
    assert torch.equal(net(b.frames, b.state, unknown), net(b.frames, b.state * 7, unknown))
    assert not torch.equal(net(b.frames, b.state, 1 - unknown), net(b.frames, b.state * 7, 1 - unknown))


def test_one_muon_takes_every_parameter_once() -> None:
    net = policy()
    groups = split_params(net, out=None)
    names = [name for group in groups for name, _ in group["params"]]
    assert sorted(names) == sorted(name for name, _ in net.named_parameters())
    assert {g["use_muon"] for g in groups} == {True, False}
    Muon(groups, lr=0.02, adamw={"lr": 0.003})


def test_statistics_leave_a_column_that_never_moves_alone() -> None:
    rows = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    found = Statistics.of(rows, rows)
    assert found.state_mean.tolist() == [2.0, 5.0]
    assert found.action_std.tolist() == [1.0, 1.0]
    assert Statistics(**found.state_dict()).state_dict().keys() == found.state_dict().keys()


class _Knows(nn.Module):
    """Says the first pixel of each frame, and 0 for a grey one."""

    def forward(self, frames: Tensor, state: Tensor, known: Tensor) -> Tensor:
        said = (frames[:, 0, 0, 0, :1].float() - 127) / 100
        return said[:, None, :].expand(-1, 4, 2)


def known(values: list[float], valid: Tensor | None = None) -> Batch:
    n = len(values)
    frames = torch.full((n, 2, 12, 16, 3), 127, dtype=torch.uint8)
    frames[:, 0, 0, 0, 0] = torch.tensor([round(127 + 100 * v) for v in values])
    action = torch.tensor(values)[:, None, None].expand(n, 4, 2).clone()
    return Batch(frames, torch.zeros(n, 3), action, torch.ones(n, 4, dtype=torch.bool) if valid is None else valid)


PLAIN = Statistics(torch.zeros(3), torch.ones(3), torch.zeros(2), torch.ones(2))


def test_the_judge_tells_seeing_from_knowing_the_mean() -> None:
    # given a policy that reads the answer off the frame
    found = evaluate(_Knows(), PLAIN, [known([1.0, -1.0]), known([0.5])])
    # then it makes no error, the mean does, and so does the same policy without eyes
    assert found.samples == 3
    assert found.error == pytest.approx(0.0, abs=1e-6)
    assert found.mean_error == pytest.approx(((1 + 1 + 0.25) / 3) ** 0.5)
    assert found.blank_error == pytest.approx(found.mean_error)
    assert found.against_mean == pytest.approx(0.0, abs=1e-6)


def test_what_is_padded_or_masked_does_not_count() -> None:
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[1] = False
    valid[0, 2:] = False
    spoilt = known([1.0, -1.0], valid)
    spoilt.action[0, 2:] = 100.0
    spoilt.action[1] = 100.0
    found = evaluate(_Knows(), PLAIN, [spoilt])
    assert found.samples == 1
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_nothing_to_judge_is_no_success() -> None:
    found = evaluate(_Knows(), PLAIN, [])
    assert (found.samples, found.error) == (0, float("inf"))
    assert not found.against_mean <= 0.8


def test_the_judge_leaves_the_policy_as_it_was() -> None:
    net = policy().train()
    evaluate(net, PLAIN, [batch()])
    assert net.training
