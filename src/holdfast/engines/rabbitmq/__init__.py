"""RabbitMQ through aiormq: a broker for `brokered`, and links for gates."""

from holdfast.engines.rabbitmq.broker import RabbitBroker
from holdfast.engines.rabbitmq.link import RabbitLink

__all__ = ["RabbitBroker", "RabbitLink"]
