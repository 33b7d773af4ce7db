"""The manifests of deploy/ have the fields of their kinds, with the right types. The models come from Kubeflow.

`kubeflow-trainer-api` has models for Kubernetes, JobSet and the Trainer, `kubeflow-training` for the training operator.
Both are made from the schemas of their projects.
"""

import copy
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = [
    pytest.mark.newest_only,  # no TensorFlow in it
    pytest.mark.skipif(
        importlib.util.find_spec("kubeflow_trainer_api") is None or importlib.util.find_spec("kubeflow") is None,
        reason="the models of Kubernetes are not here: tools/setup.sh kubernetes",
    ),
]

_MANIFESTS = sorted((Path(__file__).parents[2] / "deploy" / "kubernetes").glob("*.yaml"))
_MODELS = {
    ("v1", "Secret"): "IoK8sApiCoreV1Secret",
    ("v1", "Service"): "IoK8sApiCoreV1Service",
    ("batch/v1", "Job"): "IoK8sApiBatchV1Job",
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "JobsetV1alpha2JobSet",
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): "TrainerV1alpha1TrainingRuntime",
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): "TrainerV1alpha1TrainJob",
}
# Fields whose keys the user chooses.
_FREE = {"labels", "annotations", "stringData", "selector", "limits", "tfReplicaSpecs"}
_SCALARS = {"str": str, "int": int, "bool": bool, "float": float, "object": object}

DOCUMENTS = [
    pytest.param(document, id=f"{path.stem}-{document['kind']}")
    for path in _MANIFESTS
    for document in yaml.safe_load_all(path.read_text())
]


def _check(document: dict[str, Any]) -> None:
    """Raises an AssertionError or a ValueError if a document has a field that its kind lacks, or of a wrong type."""
    kind = document["apiVersion"], document["kind"]
    if kind == ("kubeflow.org/v1", "TFJob"):
        _check_fields(document, "KubeflowOrgV1TFJob", "TFJob")
        return
    from kubeflow_trainer_api import models

    # These models drop the fields that they don't know.
    known = getattr(models, _MODELS[kind]).from_dict(document).to_dict()
    assert known == document


def _check_fields(value: Any, kind: str, where: str) -> None:
    """Compares a value with a type of the training operator's models: `str`, `list[V1Pod]`, `dict(str, V1Pod)`."""
    import kubeflow.training
    import kubernetes.client

    if kind.startswith("list["):
        assert isinstance(value, list), where
        for i, entry in enumerate(value):
            _check_fields(entry, kind[5:-1], f"{where}[{i}]")
    elif kind.startswith("dict("):
        assert isinstance(value, dict), where
        for name, entry in value.items():
            _check_fields(entry, kind[5:-1].partition(", ")[2], f"{where}.{name}")
    elif kind in _SCALARS:
        assert isinstance(value, _SCALARS[kind]), where
    else:
        model = getattr(kubeflow.training, kind, None) or getattr(kubernetes.client, kind)
        names = {name: attribute for attribute, name in model.attribute_map.items()}
        for name, entry in value.items():
            assert name in names, f"{where}.{name}: wanted one of {', '.join(names)}"
            _check_fields(entry, model.openapi_types[names[name]], f"{where}.{name}")


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the paths of all fields whose names are given by their kinds."""
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(value, dict) and (not path or path[-1] not in _FREE) and key not in ("apiVersion", "kind"):
            yield (*path, key)
        yield from _places(entry, (*path, key))


# Promise (deploy/README.md): manifests have the fields of their kinds, with the right types; a misspelt field is found.
@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_manifest_has_the_fields_of_its_kind(document):
    _check(document)


# Promise (deploy/README.md): manifests have the fields of their kinds, with the right types; a misspelt field is found.
@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_misspelt_field_is_found(document):
    places = list(_places(document))
    assert places
    for path in places:
        wrong = copy.deepcopy(document)
        parent = wrong
        for key in path[:-1]:
            parent = parent[key]
        parent[f"{path[-1]}s"] = parent.pop(path[-1])
        with pytest.raises((AssertionError, ValueError)):
            _check(wrong)


def test_a_value_of_a_wrong_type_is_found():
    for document in (copy.deepcopy(parameter.values[0]) for parameter in DOCUMENTS):
        if document["kind"] == "TrainJob":
            document["spec"]["trainer"]["numNodes"] = "four"
        elif document["kind"] == "TFJob":
            document["spec"]["runPolicy"]["backoffLimit"] = "four"
        else:
            continue
        with pytest.raises((AssertionError, ValueError)):
            _check(document)
