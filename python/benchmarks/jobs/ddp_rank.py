"""Rank program: trains an emulated network by DistributedDataParallel over gloo, without Spark.

    python ddp_rank.py RENDEZVOUS_FOLDER JOB

JOB and what rank 0 prints are those of rank.py, but that it does not know the parts of an iteration. RANK and WORLD_SIZE
are in the environment, and GLOO_SOCKET_IFNAME names the network interface.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from benchmarks.peers.ddp import trained
from benchmarks.rendezvous import gloo_group
from benchmarks.workload import ROWS, RankJob, nbytes, network

from sparkdl_comm.sim.profile import Profile


def main() -> None:
    folder, job = sys.argv[1], RankJob(**json.loads(sys.argv[2]))
    torch.set_num_threads(1)
    with gloo_group(f"{folder}/rendezvous", job.timeout):
        profile = Profile.read(Path(job.profile))
        module = network(profile, job.scale)
        bucket_mb = None if job.bucket is None else job.bucket / (1 << 20)
        samples, verified = trained(
            module, profile, ROWS, steps=job.steps, warmup=job.warmup, repeats=job.repeats, bucket_mb=bucket_mb
        )
        if dist.get_rank() == 0:
            told = {"bytes": nbytes(profile), "samples": samples, "parts": {}, "verified": verified}
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
