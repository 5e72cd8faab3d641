#!/bin/sh
# Slurm hook 'prolog'. Static on purpose: it works when the agent does not.
# A missing, crashing or hanging agent exits 0 here, is counted, and pages; only a measured fault fails.
set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 077
python=${KINEMILL_AGENT_PYTHON:-/opt/kinemill/agents/current/bin/python}
run_dir=${KINEMILL_RUN_DIR:-/run/kinemill}
if [ -x "$python" ]; then
    timeout -k 1 12 "$python" -I -m kinemill.agents.hook prolog
    code=$?
else
    code=127
fi
case $code in
    0) exit 0 ;;
    100) exit 1 ;;
esac
mkdir -p -m 0755 "$run_dir" 2>/dev/null
echo "$(date +%s) prolog $code" >>"$run_dir/agent_missing" 2>/dev/null
timeout -k 1 2 logger -t kinemill -p daemon.crit "hook prolog: the agent is missing or broken (exit $code); the job was let through" 2>/dev/null
exit 0
