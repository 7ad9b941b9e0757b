"""Places where jobs run: this machine, a SLURM cluster, a Ray cluster.

A job is JSON: the name of a module-level function and its keyword arguments. A place runs it at
least once, and possibly twice (a lost node, a restarted driver); the function makes it count once:
it returns only when its result is on disk, skips what is already there, and resumes what was
interrupted. A new kind of job is a function:

    def embed_part(source: str, start: int, end: int, out: str, *, console: Console) -> None:
        if not Path(out).exists():
            ...  # compute, then write under a temporary name and rename

    jobs = [Job("torchcaps.my_module:embed_part", {"source": …, "start": 0, …}, name="part 0")]
    for outcome in run_jobs(jobs, on="slurm:partition=gpu,time=4h", at_once=100):
        print(outcome.job.name, outcome.error or "done")

The function runs in `root`, the driver's working directory, which the machines of a cluster share:
relative paths are the same everywhere. `console` writes to the job's log file. An exception becomes
`outcome.error` and leaves the other jobs alone; `Interrupted` (TERM, USR1, USR2, preemption, time
limit) is no outcome: the place runs the job again. Jobs whose result is there should not be given
out at all: a process takes seconds to start.
"""

from torchcaps.places.job import Job, Outcome
from torchcaps.places.run import Place, Runner, get_place, run_jobs

__all__ = ["Job", "Outcome", "Place", "Runner", "get_place", "run_jobs"]
