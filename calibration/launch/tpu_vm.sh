#!/bin/bash
# Collect on a Cloud TPU slice of any number of hosts, from the machine that has gcloud. Needs dmodel and jax[tpu] on the workers.
#   PROJECT=… ZONE=… calibration/launch/tpu_vm.sh TPU_NAME OUT [options of dmodel collect]
# OUT lies on each worker, unless it is a shared mount; the last step gathers the records into ./OUT_NAME, where they merge.
set -euo pipefail

name=${1:?"usage: tpu_vm.sh TPU_NAME OUT [options of dmodel collect]"}
out=${2:?"usage: tpu_vm.sh TPU_NAME OUT [options of dmodel collect]"}
shift 2
where=(--project="${PROJECT:?set PROJECT}" --zone="${ZONE:?set ZONE}")

# %q quotes what the remote shell will split again
options=""
if (($#)); then options=$(printf ' %q' "$@"); fi
gcloud compute tpus tpu-vm ssh "$name" "${where[@]}" --worker=all \
  --command="dmodel collect --launcher tpu --out $(printf '%q' "$out") --json$options"

here=$(basename "$out")
mkdir -p "$here"
# one file for each host, named after it, so copies never collide
gcloud compute tpus tpu-vm scp "$name":"$out/*.jsonl" "$here/" "${where[@]}" --worker=all
echo "records are in $here; tables: dmodel collect --out $here --tables-only" >&2
