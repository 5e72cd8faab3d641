"""Every decoder keeps the same promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinemill.episode.decode import DECODERS, Decoder, DecoderPool, PyAvDecoder, StreamKind
from kinemill.episode.pixels import PixelFormat
from kinemill.errors import CorruptError, MissingToolError, UsageError
from support.episode import encode, packets, picture
from support.layers import skip

TORCHCODEC = Path(__file__).parents[3] / "build/torchcodec"
"""Where `make viewers` puts torchcodec: beside the environment, whose torch it must not replace."""


@pytest.fixture(params=sorted(DECODERS))
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> object:
    """A maker of rgb24 decoders for 64 x 48, or a skip where the library or the GPU is missing."""
    if TORCHCODEC.is_dir() and request.param != "pyav":
        monkeypatch.syspath_prepend(str(TORCHCODEC))

    def made() -> Decoder:
        return DECODERS[request.param]("h264", "rgb24", 64, 48)

    try:
        decoder = made()
        if request.param == "nvdec":
            decoder.decode(stream(1), [0], np.empty((1, 48, 64, 3), np.uint8))
    except (MissingToolError, CorruptError) as exc:
        skip(
            f"decoder {request.param}: {str(exc).splitlines()[0][:100]}",
            run="make viewers, then make test; needs FFmpeg's shared libraries (and for nvdec: an NVIDIA GPU)",
        )
    return made


def stream(frames: int = 12, camera: int = 0) -> list[memoryview]:
    return [memoryview(data) for _, data, _ in packets(camera, frames)][:frames]


def is_frame(image: np.ndarray, frame: int, camera: int = 0) -> bool:
    errors = [np.abs(image.astype(int) - picture(camera, k)).mean() for k in range(30)]
    return int(np.argmin(errors)) == frame


def decode(decoder: Decoder, units: list[memoryview], wanted: list[int]) -> np.ndarray:
    out = np.zeros((len(wanted), 48, 64, 3), np.uint8)
    decoder.decode(units, wanted, out)
    return out


def test_one_packet_in_one_picture_out(make: object) -> None:
    decoder = make()  # type: ignore[operator]  # a maker, from the fixture
    assert isinstance(decoder, Decoder)
    out = decode(decoder, stream(5), [0, 3, 4])
    assert [is_frame(image, k) for image, k in zip(out, (0, 3, 4), strict=True)] == [True] * 3


def test_a_decoder_is_used_again_after_reset(make: object) -> None:
    decoder = make()  # type: ignore[operator]  # a maker, from the fixture
    first = decode(decoder, stream(5), [4])
    decoder.reset()
    other = decode(decoder, stream(3, camera=1), [2])
    assert is_frame(other[0], 2, camera=1)
    decoder.reset()
    np.testing.assert_array_equal(decode(decoder, stream(5), [4]), first)


def test_a_stream_of_another_size_is_refused(make: object) -> None:
    units = [memoryview(data) for data in encode(3, width=96, height=64)]
    with pytest.raises(CorruptError):
        decode(make(), units, [0])  # type: ignore[operator]  # a maker, from the fixture


def test_garbage_is_refused(make: object) -> None:
    units = [memoryview(b"\0\0\0\1\x65" + bytes(range(200)))]
    with pytest.raises(CorruptError):
        decode(make(), units, [0])  # type: ignore[operator]  # a maker, from the fixture


@pytest.mark.parametrize("hurt", ["truncated_idr", "flipped_p", "starts_mid_gop"])
def test_damage_that_ffmpeg_would_hide_rejects_the_gop(hurt: str, make: object) -> None:
    units = [bytes(u) for u in stream(5)]
    if hurt == "truncated_idr":
        units[0] = units[0][: len(units[0]) // 2]
    elif hurt == "flipped_p":
        raw = bytearray(units[2])
        raw[6:10] = bytes(b ^ 0xFF for b in raw[6:10])
        units[2] = bytes(raw)
    else:
        units = units[1:]
    with pytest.raises(CorruptError):
        decode(make(), [memoryview(u) for u in units], [len(units) - 1])  # type: ignore[operator]  # a maker


# ---- PyAV, our default: FFmpeg hides damage, so these are its own


@pytest.mark.parametrize("hurt", ["truncated_p", "two_in_one"])
def test_damage_that_only_a_packet_by_packet_decoder_sees_rejects_the_gop(hurt: str) -> None:
    units = [bytes(u) for u in stream(5)]
    if hurt == "truncated_p":
        units[3] = units[3][:8]
    else:
        units[2:4] = [units[2] + units[3]]
    with pytest.raises(CorruptError):
        decode(PyAvDecoder("h264", "rgb24", 64, 48), [memoryview(u) for u in units], [len(units) - 1])


def test_a_decoder_works_again_after_damage() -> None:
    decoder = PyAvDecoder("h264", "rgb24", 64, 48)
    with pytest.raises(CorruptError):
        decode(decoder, stream(5)[1:], [0])
    decoder.reset()
    assert is_frame(decode(decoder, stream(5), [1])[0], 1)


@pytest.mark.parametrize("pixel_format", ["yuv420p", "gray"])
def test_planes_without_conversion(pixel_format: PixelFormat) -> None:
    import av

    decoder = PyAvDecoder("h264", pixel_format, 64, 48)
    shape = (72, 64) if pixel_format == "yuv420p" else (48, 64)
    out = np.zeros((1, *shape), np.uint8)
    decoder.decode(stream(3), [2], out)
    context = av.VideoCodecContext.create("h264", "r")
    frames = [f for u in stream(3) for f in context.decode(av.Packet(bytes(u)))] + context.decode(None)
    np.testing.assert_array_equal(out[0], frames[2].to_ndarray()[: shape[0]])


def test_colours_survive() -> None:
    """Encoder and decoder agree on the matrix and range: flat colours come back within rounding."""
    from kinemill.episode.encode import CameraEncoder, Ticks
    from kinemill.episode.topics import TopicSpec, profile_of

    for colour in ((200, 30, 30), (30, 200, 30), (30, 30, 200), (255, 255, 255), (0, 0, 0)):
        encoder = CameraEncoder(TopicSpec("/a", rate_hz=30), profile_of("vla", crf=1.0), Ticks(30, 5))
        encoder.submit(0, np.full((48, 64, 3), colour, np.uint8))
        (unit,) = encoder.finish()
        out = decode(PyAvDecoder("h264", "rgb24", 64, 48), [memoryview(unit.data)], [0])
        assert np.abs(out[0].reshape(-1, 3).mean(axis=0) - colour).max() < 4


def test_the_pool_is_bounded_and_gives_decoders_back() -> None:
    pool = DecoderPool(limit=2)
    kinds = [StreamKind("pyav", "h264", "rgb24", 16 * (i + 1), 16) for i in range(4)]
    decoders = [pool.take(kind) for kind in kinds]
    for decoder, kind in zip(decoders, kinds, strict=True):
        pool.give(decoder, kind)
    assert len(pool) == 2
    assert pool.take(kinds[3]) is decoders[3]
    assert pool.take(kinds[0]) is not decoders[0]


def test_an_unknown_decoder_is_named() -> None:
    with pytest.raises(UsageError, match="pyav"):
        DecoderPool().take(StreamKind("magic", "h264", "rgb24", 16, 16))
