"""Muon for many nodes: orthogonalised updates, sharded over the node or over the world.

Modules, in the order in which a step uses them: `split` (which parameters), `plan` (who owns which
matrix), `topology` and `groups` (who is where), `decide` with `cost` and `site` (node or world),
`newton_schulz` with `coefficients` (the mathematics), `exchange` (the bytes), `optimizer` (the step),
`digest` (are replicas equal), `state` (checkpoints), `counters`. Importing the package imports no torch.
"""
