"""Every file of clusters/ against the schema or engine that will read it, and what all of them promise."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator.config import ROOT, load
from tests.conftest import SHARED

CLUSTERS = ROOT / "clusters"
FILES = sorted(path for path in CLUSTERS.rglob("*") if path.is_file())
SCRIPTS = [*CLUSTERS.glob("*.sh"), *CLUSTERS.glob("*/*.sbatch")]
MANIFESTS = sorted(CLUSTERS.glob("kuberay/*.yaml"))
CUSTOM = {"RayCluster": "ray.io_rayclusters.yaml", "RayJob": "ray.io_rayjobs.yaml"}
tools = pytest.mark.service("cluster-tools")


def documents(path):
    return list(yaml.safe_load_all(path.read_text()))


def tool(name, *arguments):
    """What a linter of the project's own venv, or of the system, says; empty for nothing."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    ran = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True)
    return ran.stdout + ran.stderr if ran.returncode else ""


# ---- shell, Docker


@tools
def test_shellcheck_finds_nothing_in_the_scripts():
    assert tool("shellcheck", *SCRIPTS) == ""


@tools
def test_hadolint_finds_nothing_in_the_dockerfile():
    assert tool("hadolint", CLUSTERS / "Dockerfile") == ""


def test_the_scripts_can_be_run_and_the_dockerfile_copies_what_exists():
    assert all(os.access(path, os.X_OK) for path in SCRIPTS)
    lines = (CLUSTERS / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied)


# ---- Ray's cluster launcher


def test_the_local_file_is_one_for_rays_launcher():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load((CLUSTERS / "local.yaml").read_text()))
    validate_config(config)


def test_the_aws_file_scales_from_zero_on_spot_with_a_head_that_stays():
    from ray.autoscaler._private.util import prepare_config

    config = prepare_config(yaml.safe_load((CLUSTERS / "aws/cluster.yaml").read_text()))
    types = config["available_node_types"]
    head, workers = types.pop(config["head_node_type"]), types.values()
    assert "InstanceMarketOptions" not in head["node_config"]
    assert [worker["min_workers"] for worker in workers] == [0, 0]
    assert {worker["node_config"].get("InstanceMarketOptions", {}).get("MarketType") for worker in workers} == {
        "spot",
        None,
    }
    assert {node["node_config"]["IamInstanceProfile"]["Name"] for node in (head, *workers)} == {
        "spot-head",
        "spot-worker",
    }
    assert config["max_workers"] >= max(worker["max_workers"] for worker in workers)


@tools
def test_cfn_lint_finds_nothing_in_the_accounts_template():
    assert tool("cfn-lint", CLUSTERS / "aws/account.yaml") == ""


@tools
def test_the_account_and_the_cluster_come_up_on_a_mocked_aws_within_the_roles_rights(tmp_path, monkeypatch):
    """CloudFormation makes the account; Ray validates and bootstraps; the head's role starts and ends a worker."""
    import boto3
    from moto import mock_aws
    from moto.core import set_initial_no_auth_action_count
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config, validate_config

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "mocked")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray puts its ssh key there
    config = prepare_config(yaml.safe_load((CLUSTERS / "aws/cluster.yaml").read_text()))
    with mock_aws():
        template = (CLUSTERS / "aws/account.yaml").read_text()
        stacks = boto3.client("cloudformation")
        stacks.create_stack(StackName="spot", TemplateBody=template, Capabilities=["CAPABILITY_NAMED_IAM"])
        (output,) = stacks.describe_stacks(StackName="spot")["Stacks"][0]["Outputs"]
        bucket = output["OutputValue"].removeprefix("s3://").removesuffix("/sweeps")
        config = AWSNodeProvider.fillout_available_node_types_resources(config)
        validate_config(config)
        config = AWSNodeProvider.bootstrap_config(config)
        assert config["available_node_types"]["gpu"]["resources"]["GPU"] == 8
        head, worker = (_role(boto3, name) for name in ("spot-head", "spot-worker"))
        set_initial_no_auth_action_count(0)(_use_the_roles)(config, bucket, head, worker)


def _use_the_roles(config, bucket, head, worker):
    """Each right once, and some that neither role has; Conditions are beyond moto."""
    import boto3

    _start_and_end_a_worker(config, head)
    store, traces = (boto3.client("s3", **keys) for keys in (head, worker))
    store.put_object(Bucket=bucket, Key="sweeps/a", Body=b"a", IfNoneMatch="*")
    traces.put_object(Bucket=bucket, Key="traces/a", Body=b"a")
    assert traces.get_object(Bucket=bucket, Key="sweeps/a")["Body"].read() == b"a"
    assert len(store.list_objects_v2(Bucket=bucket)["Contents"]) == 2
    store.delete_object(Bucket=bucket, Key="traces/a")
    refused(traces.delete_object, Bucket=bucket, Key="sweeps/a")
    refused(store.create_bucket, Bucket="another")
    refused(boto3.client("ec2", **worker).describe_instances)
    refused(boto3.client("ec2", **head).create_security_group, GroupName="mine", Description="mine")
    refused(boto3.client("iam", **head).list_users)


def _role(boto3, name):
    """Keys of the role. Its policies are rewritten: moto checks text, and keeps CloudFormation's as dicts."""
    from moto.iam.models import iam_backends

    (role,) = (role for role in iam_backends["123456789012"]["aws"].roles.values() if role.name == name)
    for statement in (part for policy in role.policies.values() for part in policy["Statement"]):
        if "ec2:" in str(statement["Action"]):
            statement["Resource"] = "*"  # what moto asks for, whatever the machine
    role.policies = {policy: json.dumps(document) for policy, document in role.policies.items()}
    iam = boto3.client("iam")
    arn = iam.get_role(RoleName=name)["Role"]["Arn"]
    keys = boto3.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"]
    return {
        "aws_access_key_id": keys["AccessKeyId"],
        "aws_secret_access_key": keys["SecretAccessKey"],
        "aws_session_token": keys["SessionToken"],
    }


def _start_and_end_a_worker(config, keys):
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider

    provider = AWSNodeProvider({**config["provider"], "aws_credentials": keys}, config["cluster_name"])
    node = config["available_node_types"]["gpu-spot"]["node_config"]
    provider.create_node(node, {"ray-node-type": "worker", "ray-node-name": "spot-worker"}, 1)
    (started,) = provider.non_terminated_nodes({"ray-node-type": "worker"})
    provider.set_node_tags(started, {"ray-node-status": "up-to-date"})
    provider.terminate_node(started)
    assert provider.non_terminated_nodes({"ray-node-type": "worker"}) == []


def refused(call, **arguments):
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError, match=r"AccessDenied|UnauthorizedOperation"):
        call(**arguments)


# ---- Kubernetes


@tools
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_manifests_are_kubernetes(path):
    import kubernetes_validate

    for document in documents(path):
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, "1.33", strict=True)


@pytest.mark.skipif(not SHARED.joinpath("schemas").is_dir(), reason="shared/schemas: KubeRay's definitions")
@pytest.mark.parametrize("name", ["cluster", "job"])
def test_the_manifests_are_kuberays(name):
    from jsonschema import Draft202012Validator

    (manifest,) = documents(CLUSTERS / f"kuberay/{name}.yaml")
    definition = yaml.load((SHARED / "schemas" / CUSTOM[manifest["kind"]]).read_text(), yaml.CSafeLoader)
    (version,) = (v for v in definition["spec"]["versions"] if v["name"] == "v1")
    strict = _closed(version["schema"]["openAPIV3Schema"])
    errors = list(Draft202012Validator(strict).iter_errors(manifest))
    assert [f"{error.json_path}: {error.message}" for error in errors] == []
    typo = json.loads(json.dumps(manifest).replace('"minReplicas"', '"minReplica"'))
    assert list(Draft202012Validator(strict).iter_errors(typo)), "an unknown key is an error"


def _closed(schema):
    """The schema without room for unknown keys, which an API server would drop in silence."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items() if key != "x-kubernetes-validations"}
    known = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    if known and not schema.get("x-kubernetes-preserve-unknown-fields") and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


def test_the_job_has_the_cluster_of_the_cluster_file_and_everything_it_mounts():
    (cluster,), (job,) = (documents(CLUSTERS / f"kuberay/{name}.yaml") for name in ("cluster", "job"))
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]
    named = {(d["kind"], d["metadata"]["name"]) for path in MANIFESTS for d in documents(path)}
    claims = re.findall(r"claimName: ([\w-]+)", "".join(path.read_text() for path in MANIFESTS))
    assert {("PersistentVolumeClaim", claim) for claim in claims} < named
    assert cluster["spec"]["workerGroupSpecs"][0]["minReplicas"] == 0


def _joinings():
    """Every list of manifests that docs or a file's header join into one stream for kubectl."""
    texts = [path.read_text() for path in (*MANIFESTS, *ROOT.glob("docs/*.md"), ROOT / "README.md")]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines() if "kubectl apply -f -" in line]
    return sorted({found for line in lines for found in re.findall(r"clusters/kuberay/[\w{},.-]+", line)})


class _NoKeyTwice(yaml.SafeLoader):
    """A loader for which a key that is there twice is an error; YAML's own rule, which PyYAML leaves out."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if key.value != "<<"]
        assert len(keys) == len(set(keys)), f"a key twice: {keys}"
        return super().construct_mapping(node, deep)


def test_the_manifests_joined_as_they_say_are_the_documents_of_each():
    """A file that does not begin with --- would go on the last document of the file before it."""
    joinings = _joinings()
    said = {frozenset(path.stem for path in _files(one)) for one in joinings}
    assert said == {frozenset(("store", "mlflow", last)) for last in ("cluster", "job")}
    for files in (*map(_files, joinings), MANIFESTS, MANIFESTS[::-1]):
        joined = list(yaml.load_all("".join(path.read_text() for path in files), _NoKeyTwice))
        assert joined == [document for path in files for document in documents(path)]
    assert all(path.read_text().startswith("---\n") for path in MANIFESTS)


@pytest.mark.parametrize("kind", ["aws", "kuberay"])
def test_a_driver_on_the_head_knows_which_machines_may_come(kind, monkeypatch, tmp_path):
    """From zero: a sweep is refused where its workers have no place, and waits where they will have one."""
    from orchestrator import fleet
    from orchestrator.config import Workers

    if kind == "aws":
        config = yaml.safe_load((CLUSTERS / "aws/cluster.yaml").read_text())
        for name in ("gpu", "gpu-spot"):  # as Ray fills them in for p5.48xlarge
            config["available_node_types"][name]["resources"] = {"CPU": 192, "GPU": 8}
        machines = 9 * [{"CPU": 192, "GPU": 8}]
    else:
        (held,) = (d for d in documents(CLUSTERS / "kuberay/store.yaml") if d["kind"] == "ConfigMap")
        config = yaml.safe_load(held["data"]["machines"])
        (group,) = documents(CLUSTERS / "kuberay/cluster.yaml")[0]["spec"]["workerGroupSpecs"]
        (asked,) = (container["resources"] for container in group["template"]["spec"]["containers"])
        one = {"CPU": int(asked["requests"]["cpu"]), "GPU": int(asked["limits"]["nvidia.com/gpu"])}
        machines = group["maxReplicas"] * [one]
    monkeypatch.setattr(fleet, "LAUNCHED", tmp_path / "file")
    monkeypatch.setattr("ray._private.state.state.get_cluster_config", lambda: None)
    assert fleet.startable(Workers(address="auto")) == []
    (tmp_path / "file").write_text(yaml.safe_dump(config))
    assert fleet.startable(Workers(address="auto")) == machines
    assert fleet.startable(Workers()) == []


def test_the_manifests_have_the_ray_that_the_project_is_tested_with():
    (pinned,) = re.findall(r"^ray==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert documents(CLUSTERS / "kuberay/cluster.yaml")[0]["spec"]["rayVersion"] == pinned


# ---- all of them


def test_no_file_has_a_secret_in_it():
    secret = re.compile(
        r"AKIA[0-9A-Z]{16}|hf_[A-Za-z0-9]{20}|-----BEGIN|://[^/\s:]+:[^/\s@]+@|(?<!Http)(password|token|secret)\w*\s*[:=]\s*[\"']?\w{8}",
        re.IGNORECASE,
    )
    assert [(path.name, found.group()) for path in FILES if (found := secret.search(path.read_text()))] == []


def test_the_commands_that_the_files_name_are_of_files_that_exist():
    text = "".join(path.read_text() for path in FILES)
    named = set(re.findall(r"\bclusters/[\w/.-]+\.(?:sh|yaml|sbatch)", text)) | {"clusters/Dockerfile"}
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_grid_that_the_manifest_runs_is_a_command_line():
    (job,) = documents(CLUSTERS / "kuberay/job.yaml")
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[:3] == ["python", "/spot/launch.py", "run"]
    config, _ = load(words[3], words[4:])
    assert (config.name, config.store, config.workers.count) == ("sdar-8b-t0", "s3://BUCKET/sweeps", 8)


def _blocks():
    """The blocks of commands in docs/clusters.md: (heading, commands), a command of several lines joined."""
    heading, text = "", (ROOT / "docs/clusters.md").read_text().replace("\\\n", " ")
    for part in re.split(r"\n(?=## )|\n\n", text):
        heading = part.splitlines()[0] if part.startswith("## ") else heading
        if part.startswith("    "):
            yield heading, [shlex.split(line, comments=True) for line in part.splitlines()]


def test_a_paper_grid_on_each_cluster_is_five_commands_or_fewer_of_which_none_has_a_mistake():
    blocks = list(_blocks())
    assert {"## One machine with GPUs", "## AWS", "## Kubernetes", "## Slurm"} <= {heading for heading, _ in blocks}
    assert max(len(commands) for _, commands in blocks) <= 5
    started = set()
    for heading, commands in blocks:
        for command in commands:
            words = list(command)
            assert [word for word in words if word.startswith("clusters/") and not _are_files(word)] == []
            if "clusters/slurm/sweep.sbatch" in words:
                words = ["python", "launch.py", "run", *words[words.index("clusters/slurm/sweep.sbatch") + 1 :]]
            if words[:2] == ["python", "launch.py"] and words[2] in ("run", "submit", "plan", "doctor"):
                assert load(words[3], words[4:])[0].name == "sdar-8b-t0"
                started |= {heading} if words[2] in ("run", "submit") else set()
    assert len(started) == 4


def test_the_paper_grids_checkpoints_are_made_before_the_first_recipe_for_one():
    """Under the names that the grid has, by tasks with rows to train on, and not by the toy that is the default."""
    config, _ = load("paper/sdar-8b-t0")
    named = {config.drafter[name]["checkpoint"] for name in config.drafters if config.drafter[name].get("checkpoint")}
    order = list(dict.fromkeys(heading for heading, _ in _blocks()))
    (first,) = (place for place, heading in enumerate(order) if heading.startswith("## First"))
    assert first < order.index("## One machine with GPUs")
    made = set()
    for words in (words for heading, commands in _blocks() if heading == order[first] for words in commands):
        if words[0] == "python":
            verb, rest = words[2], words[3:]
            assert verb in ("import-drafter", "train-drafter", "calibrate")
            made.add(rest[rest.index("--out") + 1].replace("sdar-8b", "{model}"))
            load("quickstart", [word for word in rest if "=" in word])
            if verb != "import-drafter":
                assert rest[:4] == ["--model", "sdar-8b", "--task", "gsm8k"]
    assert made == named


def _are_files(pattern):
    """Whether it names files, several in braces, that exist."""
    return all(path.is_file() for path in _files(pattern))


def _files(pattern):
    """The files that a shell makes of it: several in braces, or one."""
    found = re.fullmatch(r"(.*)\{(.*)\}(.*)", pattern)
    names = [f"{found[1]}{name}{found[3]}" for name in found[2].split(",")] if found else [pattern]
    return [ROOT / name for name in names]
