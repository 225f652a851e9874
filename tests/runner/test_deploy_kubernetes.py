"""The files for a cluster: Kubernetes' own schema, the chart's keys, and perfgate's own reader of the policy."""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from perfgate.machine.accelerators import ACCELERATORS, find_label
from perfgate.runner.settings import load_runner

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KINDS = ("h100", "h20", "h200")
VERSION = "1.34"
# The keys of chart gha-runner-scale-set that these files use; helm ignores a key that it does not know, without a word.
CHART = {
    "githubConfigUrl",
    "githubConfigSecret",
    "minRunners",
    "maxRunners",
    "runnerScaleSetName",
    "scaleSetLabels",
    "template",
}


def read(name):
    return yaml.safe_load((FOLDER / name).read_text())


def merge(below, above):
    """As helm does it: maps are joined, everything else is replaced."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}


@pytest.fixture(params=KINDS)
def values(request):
    return merge(read("values.yaml"), read(f"values-{request.param}.yaml"))


def validate(resource):
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the test extra has it")
    kubernetes_validate.validate(resource, VERSION, strict=True)


def test_values__the_chart_knows_every_key(values):
    assert values.keys() == CHART


def test_values__the_pod_is_one(values):
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": values["template"]["spec"]})


def test_validate__a_misspelt_key_is_found(values):
    spec = merge(values["template"]["spec"], {"automountServiceAcountToken": False})

    with pytest.raises(Exception, match="automountServiceAcountToken"):
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})


def test_values__one_pod_one_gpu_no_secret(values):
    (container,) = values["template"]["spec"]["containers"]

    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert values["template"]["spec"]["automountServiceAccountToken"] is False
    assert isinstance(values["githubConfigSecret"], str)
    assert {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")} == {"shm", "home", "tmp"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {"name": "HF_HUB_CACHE", "value": "/srv/models/hub"} in container["env"]
    assert container["securityContext"]["runAsNonRoot"] is True


def test_values__a_label_is_what_the_driver_would_say(values):
    """Feature discovery writes the driver's name with hyphens; the doctor derives the label from the same name."""
    product = values["template"]["spec"]["nodeSelector"]["nvidia.com/gpu.product"].replace("-", " ", 1)
    name = product.replace("H100-80GB-HBM3", "H100 80GB HBM3")
    (row,) = (row for row in ACCELERATORS if re.fullmatch(row.name, name))

    assert values["scaleSetLabels"] == ["self-hosted", "linux", "perfgate", find_label(name, row.min_gib)]
    assert values["runnerScaleSetName"] == f"perfgate-{row.label}"


def test_cluster__holds_what_the_pods_mount(values):
    resources = list(yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()))
    for resource in resources:
        validate(resource)
    there = {(resource["kind"], resource["metadata"]["name"]) for resource in resources}
    volumes = values["template"]["spec"]["volumes"]
    wanted = {
        ("PersistentVolumeClaim", one["persistentVolumeClaim"]["claimName"])
        for one in volumes
        if "persistentVolumeClaim" in one
    }
    wanted |= {("ConfigMap", one["configMap"]["name"]) for one in volumes if "configMap" in one}
    wanted |= {("NetworkPolicy", "perfgate-runner")}

    assert there == wanted


def test_attack__a_pod_that_asks_the_cloud_for_its_rights(values):
    """What the network policy lets through, of the pods that the values make."""
    (policy,) = (one for one in yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()) if one["kind"] == "NetworkPolicy")
    blocks = [ipaddress.ip_network(text) for text in policy["spec"]["egress"][1]["to"][0]["ipBlock"]["except"]]

    assert policy["spec"]["podSelector"]["matchLabels"] == values["template"]["metadata"]["labels"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in policy["spec"]
    for address in ("169.254.169.254", "100.100.100.200", "10.0.0.1", "172.20.0.1", "192.168.1.1"):
        assert any(ipaddress.ip_address(address) in block for block in blocks)
    unit = (FOLDER.parent / "systemd" / "perfgate-runner@.service").read_text()
    denied = next(line for line in unit.splitlines() if line.startswith("IPAddressDeny="))
    assert all(str(block) in denied for block in blocks if not block.is_link_local)
    assert "link-local" in denied


def test_image__a_linter_reads_it():
    """The linter parses each instruction, and shellcheck its commands; `python -m benchmarks.adoption.image` builds it."""
    beside = Path(sys.executable).with_name("hadolint")
    linter = beside if beside.exists() else shutil.which("hadolint") or pytest.skip("the test extra has hadolint")
    done = subprocess.run([linter, FOLDER.parent / "image" / "Dockerfile"], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_image__has_no_instruction_that_builders_of_oci_images_leave_out():
    lines = (FOLDER.parent / "image" / "Dockerfile").read_text().splitlines()

    assert [line for line in lines if re.match(r"(SHELL|HEALTHCHECK|ONBUILD|MAINTAINER)\b", line)] == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root starts a process as another user")
def test_values__the_runner_starts_from_a_volume_that_is_root_s(values):
    """An emptyDir is root's and all users may write into it, but only root may set its times, as `cp -a` does."""
    (container,) = values["template"]["spec"]["containers"]
    shell, option, script = container["command"]
    with tempfile.TemporaryDirectory() as place:
        runner, home = Path(place) / "actions-runner", Path(place) / "home"
        for folder in (runner / "bin", home):
            folder.mkdir(parents=True)
        (runner / "run.sh").write_text("#!/bin/sh\nreadlink $(dirname $0)/bin/latest\n")
        (runner / "run.sh").chmod(0o755)
        (runner / "bin" / "latest").symlink_to("2.329.0")
        Path(place).chmod(0o755)
        home.chmod(0o777)
        local = script.replace("/opt/actions-runner", str(runner)).replace("/home/runner", str(home))
        done = subprocess.run([shell, option, local], capture_output=True, text=True, check=False, user=65534, group=65534)

        assert (done.returncode, done.stdout, done.stderr) == (0, "2.329.0\n", "")
        assert os.access(home / "run.sh", os.X_OK)


def test_image__holds_what_the_pods_run(values):
    text = (FOLDER.parent / "image" / "Dockerfile").read_text()
    (container,) = values["template"]["spec"]["containers"]

    assert container["command"][-1] in text
    assert f"USER {container['securityContext']['runAsUser']}" in text
    for variable in container["env"]:
        assert "hooks" not in variable["value"] or f"/opt/perfgate/hooks/{Path(variable['value']).name}" == variable["value"]
    assert "/opt/perfgate/hooks/" in text


def test_cluster__the_policy_is_one(tmp_path):
    (settings,) = (one for one in yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()) if one["kind"] == "ConfigMap")
    (tmp_path / "runner.toml").write_text(settings["data"]["runner.toml"])

    assert load_runner(tmp_path / "runner.toml").rules.repositories == {"OWNER/NAME"}


def test_page__names_files_that_are_there():
    page = (FOLDER.parents[1] / "docs" / "how-to" / "kubernetes.md").read_text()
    named = set(re.findall(r"deploy/kubernetes/([\w.-]+\.yaml)", page)) | set(re.findall(r"`(values-h\d+\.yaml)`", page))

    assert {path.name for path in FOLDER.iterdir()} == named
