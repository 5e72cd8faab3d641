# Targets over the sandbox: real nodes on this machine. They need root.

.PHONY: cluster-smoke
cluster-smoke: setup ## a Slurm cluster comes up, loses a node, requeues the job, is gone (90 s)
	$(PY) -m kinemill.control.sandbox.smoke

.PHONY: cluster-images
cluster-images: setup ## build the node images that the tests use, once
	.venv/bin/kinemill sandbox image bookworm bookworm-slurm trixie-slurm

.PHONY: molecule
molecule: setup ## role scenarios on real nodes
	.venv/bin/molecule test --all

.PHONY: cluster
cluster: setup ## from bare images to a running Slurm by one playbook, twice; a job; all gone (8 min)
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/molecule test --scenario-name bare
