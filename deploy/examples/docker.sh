#!/bin/sh
# A host without Kubernetes: what a container gets is in its variables, and nowhere else.
set -e

# 8 GiB and half of the time of one card.
docker run --rm --runtime=vgpu -e VGPU_MEMORY=8Gi -e VGPU_CORES=50 docker.io/pytorch/pytorch:latest nvidia-smi

# Parts of two cards, of unequal size.
docker run --rm --runtime=vgpu -e VGPU_COUNT=2 -e VGPU_MEMORY=40Gi,8Gi -e VGPU_CORES=70,20 \
	docker.io/pytorch/pytorch:latest nvidia-smi -L

# Half of a card's memory, and whatever time is idle; on any card but a T4.
docker run --rm --runtime=vgpu -e VGPU_MEMORY=50% -e VGPU_MODEL='!T4' docker.io/pytorch/pytorch:latest nvidia-smi

# A whole card for itself, without libvgpu.
docker run --rm --runtime=vgpu -e VGPU_MEMORY=100% docker.io/pytorch/pytorch:latest nvidia-smi

# The same in compose:
#   services:
#     notebook:
#       image: docker.io/jupyter/scipy-notebook:latest
#       runtime: vgpu
#       environment: {VGPU_MEMORY: 8Gi, VGPU_CORES: "25"}
