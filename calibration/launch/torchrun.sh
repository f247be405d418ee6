#!/bin/bash
# Collect wherever the variables of torchrun are set (by torchrun itself, a Kubernetes PyTorchJob, or by hand): one process per host with
# all of its devices, or one per device.
#   torchrun --nnodes=4 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 --no-python calibration/launch/torchrun.sh OUT
#   MASTER_ADDR=host0 MASTER_PORT=29500 WORLD_SIZE=4 RANK=$i calibration/launch/torchrun.sh OUT     # on host i, without torchrun
# jax's coordinator listens on MASTER_PORT + 1, because torchrun's own store has MASTER_PORT.
set -euo pipefail

out=${1:?"usage: torchrun.sh OUT [options of dmodel collect]"}
shift
: "${MASTER_ADDR:?not set}" "${MASTER_PORT:?not set}" "${WORLD_SIZE:?not set}" "${RANK:?not set}"

exec dmodel collect --launcher torchrun --out "$out" --json "$@"
