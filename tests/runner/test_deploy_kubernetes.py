"""The files for a cluster: Kubernetes' own schema, the chart's keys, and perfgate's own reader of the policy."""

from __future__ import annotations

import re
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
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] != "shm")
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

    assert there == wanted


def test_cluster__the_policy_is_one(tmp_path):
    (settings,) = (one for one in yaml.safe_load_all((FOLDER / "cluster.yaml").read_text()) if one["kind"] == "ConfigMap")
    (tmp_path / "runner.toml").write_text(settings["data"]["runner.toml"])

    assert load_runner(tmp_path / "runner.toml").rules.repositories == {"OWNER/NAME"}


def test_page__names_files_that_are_there():
    page = (FOLDER.parents[1] / "docs" / "kubernetes.md").read_text()
    named = set(re.findall(r"deploy/kubernetes/([\w.-]+\.yaml)", page)) | set(re.findall(r"`(values-h\d+\.yaml)`", page))

    assert {path.name for path in FOLDER.iterdir()} == named
