"""AWS's own description of SQS, from botocore: the oracle for shapes and protocols."""

import functools

from botocore.loaders import Loader
from botocore.model import ServiceModel


@functools.cache
def service_model() -> ServiceModel:
    return ServiceModel(Loader().load_service_model("sqs", "service-2"), "sqs")
