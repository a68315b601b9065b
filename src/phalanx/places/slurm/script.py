"""The text of batch scripts: made to be read by whoever submits one."""

TRAIN = """\
run={output}"$name"
if [[ -f $run/plan.json ]]; then
  words=(--resume "$run")
else
  words=({output_word} --name="$name" {words})
fi
"""

LAUNCH = """\
turn=$((${{SLURM_RESTART_COUNT:-0}} + 1)) resumed=()
if ((turn > 1)); then  # queued again: a run of its own, in which the script is told to resume
  name=${{name}}_turn$turn resumed=(--resumed)
fi
words=({output_word} --name="$name" "${{resumed[@]}}" {words})
"""

MEETING = """
# The nodes meet at the first one. Ports 20000 to 29999 by the number of the job: two jobs on a node
# meet at two ports, and none is one that the system gives to others (32768 and up).
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))
words=(--nodes="$SLURM_NNODES" --rendezvous="$host:$port" "${words[@]}")
"""

ONE_NODE = """\
# One task per node, which starts a rank per GPU itself. USR1 before it listens is ignored: it
# comes again.
srun --nodes=1 --ntasks-per-node=1{cpus} --kill-on-bad-exit=1 \\
  bash -c 'trap "" USR1; exec "$@"' phalanx {python} -m phalanx {verb} "${{words[@]}}" &
"""

SEVERAL_NODES = """\
# One task per node, which starts a rank per GPU itself. USR1 before they listen is ignored: it
# comes again. The nodes end each other; Slurm would kill the rest when the first one has ended.
srun --nodes={nodes} --ntasks-per-node=1{cpus} --kill-on-bad-exit=0 --wait=0 \\
  bash -c 'trap "" USR1; exec "$0" -m phalanx {verb} --node-rank="$SLURM_NODEID" "$@"' \\
  {python} "${{words[@]}}" &
"""

SCRIPT = """\
#!/bin/bash
# Written by `phalanx slurm`; to be submitted again as it is: sbatch FILE
{directives}

name={name}_{identity}  # stays the same when the job is queued again
{choice}{meeting}
# {signal_s} s before the time limit USR1 comes here, and nowhere else. It is passed on to the step
# until it was heard: {heard}, and the exit code is {stopped}.
signals=0 is_cancelled=0 step= reminder=
pass_on() {{
  [[ -n $step && -z $reminder ]] || return
  while scancel --signal=USR1 "$SLURM_JOB_ID"; do sleep 5; done 2>/dev/null &
  reminder=$!
}}
trap 'signals=$((signals + 1)); pass_on' USR1
trap 'signals=$((signals + 1)) is_cancelled=1; pass_on' TERM

export PYTHONUNBUFFERED=1
{step}step=$!
((signals > 0)) && pass_on  # it came before there was a step
while :; do
  before=$signals
  wait "$step" && code=0 || code=$?
  ((signals == before)) && break  # else it was the signal that ended the waiting
done
[[ -n $reminder ]] && kill "$reminder" 2>/dev/null

# Only a run that was told to stop here, and has saved, goes on later. A crash is not repeated.
restarts=${{SLURM_RESTART_COUNT:-0}} reason=
((signals > 0 && is_cancelled == 0)) && reason="the time limit"
# A job that has to give way to another: TERM came to its step, perhaps not here.
[[ -z $reason && $code == {stopped} ]] &&
  [[ $(scontrol show job "$SLURM_JOB_ID" 2>/dev/null) == *PreemptTime=2* ]] &&
  reason="giving way to another job"
if [[ $code == {stopped} && -n $reason ]]; then
  if ((restarts < {max_requeues})); then
    echo "phalanx: saved before $reason; queued again ($((restarts + 1)) of {max_requeues})"
    scontrol requeue "$SLURM_JOB_ID"
  else
    echo "phalanx: saved, not queued again: that was done {max_requeues} times (--max-requeues)" >&2
  fi
fi
exit "$code"
"""
