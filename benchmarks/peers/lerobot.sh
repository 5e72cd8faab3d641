#!/usr/bin/env bash
# LeRobot 0.6.1 (format v3) on Python 3.11 and CPU torch 2.13, outside what it declares; see patch_lerobot.py.
# torchcodec loads the system's FFmpeg libraries (Debian: libavcodec, libavformat, libavfilter, libavdevice, libswscale).
if ! ldconfig -p | grep -q 'libavcodec\.so'; then
    echo "FFmpeg's libraries are missing: apt-get install --no-install-recommends ffmpeg" >&2
    exit 1
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_env lerobot
"${PIP[@]}" "$TORCH"
"${PIP[@]}" "$TORCH" 'datasets>=4.8,<5' 'pandas<3' pyarrow 'av>=15,<16' 'draccus>=0.11.6,<0.12' \
    'huggingface-hub>=1.6,<2' gymnasium safetensors 'packaging<26' termcolor tqdm jsonlines einops 'numpy<2.3' 'Pillow<13'
"${PIP[@]}" --no-deps --ignore-requires-python lerobot==0.6.1 torchvision==0.28.0 torchcodec==0.12.0
"$ENV_DIR/bin/python" "$HERE/patch_lerobot.py" "$ENV_DIR"
"$ENV_DIR/bin/python" -c 'import torchcodec; from lerobot.datasets.lerobot_dataset import LeRobotDataset'
finish_env lerobot
