"""The manifests of deploy/kubernetes, checked against the schemas of Kubernetes.

The resources of KEDA have no schema there; `tests/docs/test_deploy.py` checks their fields that
name something of ours.
"""

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.sources import ROOT

MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").iterdir())
OTHERS = ("keda.sh/v1alpha1",)


def resources(path: Path) -> list[Any]:
    documents = yaml.safe_load_all(path.read_text())
    return [each for each in documents if each["apiVersion"] not in OTHERS]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifest(path: Path) -> None:
    found = resources(path)
    assert found
    for resource in found:
        # Strict: a field that is not in the schema is a mistake.
        kubernetes_validate.validate(resource, kubernetes_validate.latest_version(), strict=True)


def test_a_misspelt_field_is_found() -> None:
    """Else the test above could not fail."""
    deployment = resources(MANIFESTS[0])[0]
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    container["livenessProb"] = container.pop("livenessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="livenessProb"):
        kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)
