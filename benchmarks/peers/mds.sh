#!/usr/bin/env bash
# MosaicML Streaming 0.13.0 with CPU torch 2.13; its torchvision needs the patch of patch_torchvision.py.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
make_env mds
"${PIP[@]}" "$TORCH"
"${PIP[@]}" "$TORCH" 'numpy==2.1.3' 'Pillow<13' setuptools
"${PIP[@]}" --no-deps torchvision==0.28.0
"${PIP[@]}" "$TORCH" mosaicml-streaming==0.13.0 'numpy==2.1.3' torchvision==0.28.0
"$ENV_DIR/bin/python" "$HERE/patch_torchvision.py" "$ENV_DIR"
"$ENV_DIR/bin/python" -c 'from streaming import MDSWriter, StreamingDataset'
finish_env mds
