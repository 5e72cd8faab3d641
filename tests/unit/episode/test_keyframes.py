"""Key frames of other codecs, against what their encoders say."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.episode.keyframes import is_keyframe

ENCODERS = {
    "h264": ("libx264", {"preset": "ultrafast", "x264-params": "keyint=5:min-keyint=5:scenecut=0:log-level=none"}),
    "hevc": ("libx265", {"preset": "ultrafast", "x265-params": "keyint=5:min-keyint=5:scenecut=0:log-level=none"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "cpu-used": "8", "g": "5", "lag-in-frames": "0"}),
    "av1": ("libsvtav1", {"preset": "12", "g": "5", "svtav1-params": "pred-struct=1"}),
}


@pytest.mark.parametrize("codec", list(ENCODERS))
def test_key_frames_are_what_the_encoder_says(codec: str) -> None:
    # given a stream with a key frame every five frames
    name, options = ENCODERS[codec]
    context = av.VideoCodecContext.create(name, "w")
    context.width, context.height, context.pix_fmt = 128, 128, "yuv420p"
    context.time_base = Fraction(1, 30)
    context.options = options
    rng = np.random.default_rng(1)
    packets = []
    for k in range(20):
        frame = av.VideoFrame.from_ndarray(rng.integers(0, 255, (192, 128), np.uint8), format="yuv420p")
        frame.pts = k
        packets += context.encode(frame)
    packets += context.encode(None)
    assert len(packets) == 20
    # when, then
    told = [packet.is_keyframe for packet in packets]
    assert 4 <= sum(told) < 20
    assert [is_keyframe(codec, bytes(packet)) for packet in packets] == told


def test_nothing_is_said_of_an_unknown_codec() -> None:
    assert is_keyframe("theora", b"\x80") is None


@given(st.sampled_from(sorted(ENCODERS)), st.binary(max_size=80))
def test_hostile_bytes_get_an_answer(codec: str, data: bytes) -> None:
    assert is_keyframe(codec, data) in (True, False)
