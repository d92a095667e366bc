"""The KubeRay manifest: the fields that it uses, as the schema of KubeRay's RayService names them, and its Serve part.

No Kubernetes is needed, and none was: the schema below holds the fields of `ray.io/v1` that the manifest uses.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from intarsia.errors import IntarsiaError
from intarsia.serve.limits import Limits
from intarsia.service.options import Keys, Options, check_exposure

MANIFEST = Path(__file__).parents[2] / "docs" / "kuberay.yaml"
CONTAINER: dict[str, Any] = {
    "name": str, "image": str, "env": list, "ports": list, "volumeMounts": list,
    "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"memory": str}},
}  # fmt: skip
POD = {"spec": {"containers": [CONTAINER], "volumes": list}}
SCHEMA: dict[str, Any] = {
    "apiVersion": str, "kind": str, "metadata": {"name": str},
    "spec": {
        "serveConfigV2": str,
        "rayClusterConfig": {
            "rayVersion": str, "enableInTreeAutoscaling": bool,
            "headGroupSpec": {"rayStartParams": dict, "template": POD},
            "workerGroupSpecs": [
                {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int, "rayStartParams": dict,
                 "template": POD}
            ],
        },
    },
}  # fmt: skip


def check(value: Any, schema: Any, place: str = "") -> None:
    if isinstance(schema, dict):
        assert isinstance(value, dict), place
        assert value.keys() <= schema.keys(), f"{place}: {value.keys() - schema.keys()}"
        for name, inner in value.items():
            check(inner, schema[name], f"{place}.{name}")
    elif isinstance(schema, list):
        for number, inner in enumerate(value):
            check(inner, schema[0], f"{place}[{number}]")
    else:
        assert type(value) is schema, f"{place} is a {type(value).__name__}"


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    return dict(yaml.safe_load(MANIFEST.read_text(encoding="utf-8")))


def test_the_manifest_has_the_fields_of_a_ray_service(manifest: dict[str, Any]) -> None:
    check(manifest, SCHEMA)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    cluster = manifest["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # as `ray start` takes them
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert "RAY_USAGE_STATS_ENABLED" in {variable["name"] for variable in container["env"]}
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_serve_part_names_what_exists(manifest: dict[str, Any]) -> None:
    config = yaml.safe_load(manifest["spec"]["serveConfigV2"])
    (application,) = config["applications"]
    module, _, name = application["import_path"].partition(":")
    assert (module, name) == ("intarsia.cluster.serving", "build")
    known = {field.name for kind in (Options, Limits) for field in dataclasses.fields(kind)}
    known |= {"bank", "encoder", "device", "precision", "replicas", "replica_cores", "fronts"}
    assert application["args"].keys() <= known
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in application["args"].items() if name in names})
    with pytest.raises(IntarsiaError, match="INTARSIA_API_KEY"):
        check_exposure(options, Keys())


@pytest.mark.ray
@pytest.mark.filterwarnings("default")
def test_ray_accepts_the_serve_part(manifest: dict[str, Any]) -> None:
    pytest.importorskip("ray")
    from ray.serve.schema import ServeDeploySchema

    from intarsia.cluster.serving import build

    config = ServeDeploySchema(**yaml.safe_load(manifest["spec"]["serveConfigV2"]))
    assert build(config.applications[0].args).__class__.__name__ == "Application"
