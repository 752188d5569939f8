"""RabbitMQ through aiormq: the broker of `brokered`, and links for gates."""

from holdfast.engines.rabbitmq.broker import RabbitBroker
from holdfast.engines.rabbitmq.link import RabbitLink

__all__ = ["RabbitBroker", "RabbitLink"]
