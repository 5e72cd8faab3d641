"""Slurm behind `kinemill.contracts.SlurmAdmin` and `SlurmJobs`; standard library only."""
