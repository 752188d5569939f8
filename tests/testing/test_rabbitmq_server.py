"""The private RabbitMQ survives kills, keeps its data and address, and leaves nothing behind."""

import aio_pika


async def test_it_answers(amqp_url: str) -> None:
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"hello"), queue.name)
        message = await queue.get(no_ack=True)
        assert message is not None
        assert message.body == b"hello"
