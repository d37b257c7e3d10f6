"""Manifests for many nodes: an indexed Job with its headless Service, a JobSet, a PyTorchJob.

One pod a node, all its GPUs, /dev/shm in memory. The pod's first process is a shell that turns SIGTERM into STOP_FILE.
The kubelet would expand `$(NAME)` and shrink `$$` in a command, so both are doubled there. Does not know the cluster's
queues, RDMA devices or volumes: the manifest says where they go.

>>> write(Launch("torchrun", "jobset", "train.py", container="img")).script.splitlines()[0]
'apiVersion: "jobset.x-k8s.io/v1alpha2"'
"""

from __future__ import annotations

import re
from typing import Any

from skillserver.cluster import launchers_start, manifest_text
from skillserver.cluster.launchers import Draft, Launch

PORT = 29500
JOB_NAME, MOST_RESTARTS = "batch.kubernetes.io/job-name", 20
BODY = """set -uo pipefail
{setup}export RUN_DIR="${{RUN_DIR:-/tmp/run}}"
export STOP_FILE="$RUN_DIR/stop.$HOSTNAME" HEARTBEAT_FILE="$RUN_DIR/heartbeat.$HOSTNAME" SAVE_FILE="$RUN_DIR/save" DONE_FILE="$RUN_DIR/done"
export NCCL_DEBUG="${{NCCL_DEBUG:-WARN}}" PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="$RUN_DIR/flight/rank_" TORCH_FR_DUMP_TEMP_FILE="$RUN_DIR/flight/rank_"
mkdir -p -- "$RUN_DIR/flight"
rm -f -- "$STOP_FILE" "$HEARTBEAT_FILE"
[[ ! -e $DONE_FILE ]] || exit 0
trap 'touch -- "$STOP_FILE"' TERM
{command} &
pid=$!
wait "$pid"; status=$?
while kill -0 "$pid" 2>/dev/null; do wait "$pid"; status=$?; done
exit "$status"
"""


def write(launch: Launch) -> Draft:
    """The manifest with what to know about it."""
    documents = {"kubernetes-job": _job_documents, "jobset": _jobset, "pytorchjob": _pytorchjob}[launch.target](launch)
    text = "---\n".join(manifest_text.document(document) for document in documents)
    name = f"{launch.name}.yaml"
    return Draft(text, {name: "this manifest", "$RUN_DIR": "stop, save and done files, Flight Recorder dumps; mount a shared volume"},
                 _explained(launch), _warnings(launch), f"save it as {name}; kubectl apply --dry-run=server -f {name}; then without")  # fmt: skip


def for_kubelet(text: str) -> str:
    """Text that the kubelet's expansion of `$(NAME)` and `$$` gives back unchanged."""
    return re.sub(r"\$(?:\$+|(?=\())", lambda found: found[0] * 2, text)


def body(launch: Launch) -> str:
    """The bash text that a pod runs."""
    rank, address, port = _rendezvous(launch)
    setup = launch.setup.strip("\n") + "\n" if launch.setup.strip() else ""
    return BODY.format(setup=setup, command=launchers_start.of_kubernetes(launch, rank, address, port))


def _rendezvous(launch: Launch) -> tuple[str, str, str]:
    """(node rank, address of the first pod, port) as the pod finds them."""
    if launch.target == "pytorchjob":
        return "$RANK", "$MASTER_ADDR", "$MASTER_PORT"
    if launch.nodes == 1:
        return "0", "127.0.0.1", str(PORT)
    pod = f"{launch.name}-workers-0-0" if launch.target == "jobset" else f"{launch.name}-0"
    return "$JOB_COMPLETION_INDEX", f"{pod}.{launch.name}", str(PORT)


def _pod(launch: Launch, container: str) -> dict[str, Any]:
    resources: dict[str, Any] = {"nvidia.com/gpu": launch.gpus_per_node}
    if launch.cpus_per_gpu:
        resources = {"cpu": launch.cpus_per_gpu * launch.gpus_per_node} | resources
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(30, launch.signal_s),
        "containers": [{
            "name": container, "image": launch.container, "command": ["bash", "-c", for_kubelet(body(launch))], "resources": {"limits": resources},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }  # fmt: skip
    if launch.exclude_nodes:
        rule = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": launch.exclude_nodes.split(",")}
        required = {"nodeSelectorTerms": [{"matchExpressions": [rule]}]}
        pod["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return pod


def _job_spec(launch: Launch, pod: dict[str, Any]) -> dict[str, Any]:
    return {"completions": launch.nodes, "parallelism": launch.nodes, "completionMode": "Indexed",
            "backoffLimit": MOST_RESTARTS if launch.requeue and launch.nodes == 1 and launch.target == "kubernetes-job" else 0,
            "activeDeadlineSeconds": int(launch.time_s), "template": {"spec": pod}}  # fmt: skip


def _job_documents(launch: Launch) -> list[dict[str, Any]]:
    pod = _pod(launch, launch.name)
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": launch.name}, "spec": _job_spec(launch, pod)}
    if launch.nodes == 1:
        return [job]
    pod["subdomain"] = launch.name
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": launch.name},
               "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {JOB_NAME: launch.name}}}  # fmt: skip
    return [service, job]


def _jobset(launch: Launch) -> list[dict[str, Any]]:
    spec = {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": MOST_RESTARTS if launch.requeue else 0},
        "replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": _job_spec(launch, _pod(launch, launch.name))}}],
    }
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": launch.name}, "spec": spec}]


def _pytorchjob(launch: Launch) -> list[dict[str, Any]]:
    """Restarts by pod: OnFailure starts the container again; the operator counts them against backoffLimit."""
    pod = _pod(launch, "pytorch")  # the operator looks for a container of this name
    del pod["restartPolicy"]
    replica = {"restartPolicy": "OnFailure" if launch.requeue else "Never", "template": {"spec": pod}}
    replicas = {"Master": {"replicas": 1} | replica} | ({"Worker": {"replicas": launch.nodes - 1} | replica} if launch.nodes > 1 else {})
    policy = {"activeDeadlineSeconds": int(launch.time_s), "backoffLimit": MOST_RESTARTS if launch.requeue else 0, "cleanPodPolicy": "Running"}
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": launch.name},
             "spec": {"nprocPerNode": str(launch.gpus_per_node), "runPolicy": policy, "pytorchReplicaSpecs": replicas}}]  # fmt: skip


def _explained(launch: Launch) -> list[str]:
    return [
        "one pod a node with all its GPUs; torchrun starts a process for each"
        if launch.kind != "accelerate"
        else "one pod a node; accelerate counts all GPUs",
        *(["DeepSpeed and Lightning read torchrun's variables, so torchrun starts them here"] if launch.kind in ("deepspeed", "lightning") else []),
        f"SIGTERM (eviction, the deadline of {launch.time_s:.0f} s) makes STOP_FILE in every pod; the program saves within "
        f"{max(30, launch.signal_s)} s and exits. All ranks must agree: broadcast any(file exists).",
        "/dev/shm is an emptyDir in memory and counts as the pod's memory: DataLoader workers need it",
        "dollar signs before ( or $ are doubled in the command, because the kubelet would expand them",
    ]


def _warnings(launch: Launch) -> list[str]:
    found = ["RUN_DIR is the pod's own /tmp/run and is lost with the pod: mount a shared volume and set RUN_DIR; checkpoints too"]
    if launch.nodes > 1:
        found.append("without gang scheduling (Kueue, Volcano) some pods may start while others wait for ever")
        found.append("RDMA devices and hostNetwork are the site's: without them NCCL falls back to TCP")
    if launch.target == "kubernetes-job" and launch.requeue and launch.nodes > 1:
        found.append("a plain Job would restart one pod while the others wait: restarts are off; target='jobset' restarts all together")
    if launch.target == "pytorchjob" and launch.requeue:
        found.append("the operator restarts the failed pod only; the others must fail too, which torchrun does once its group breaks")
    if launch.target == "pytorchjob":
        found.append("PyTorchJob belongs to Training Operator v1; Kubeflow Trainer v2 replaces it by TrainJob")
    if not launch.cpus_per_gpu:
        found.append("no CPU or memory is requested; cpus_per_gpu sets the CPUs")
    if launch.setup.strip():
        found.append("setup stands in the command as it is: read it before applying")
    return found
