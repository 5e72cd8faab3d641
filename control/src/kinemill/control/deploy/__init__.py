"""`kinemill deploy`: the playbook for an inventory, checked before anything is touched.

The order of a run: `places` finds repository, inventory and a folder for the run; `lock` keeps a second operator out;
`reading` asks a child process what the inventory says; `preflight` collects every fault, those of the nodes through
`reach`; `engine` runs the playbook through ansible-runner, `tally` counts what it does, `show` tells it to a person
meanwhile and `report` draws it afterwards. `redact` stands between Ansible and every file that is kept.
"""
