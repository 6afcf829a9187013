"""Local Service Bus broker (AMQP 1.0) that works with the official SDK.

Layers, from top to bottom:

- :mod:`~broadside.lab.servicebus.listener`: sockets, timers and disk
- :mod:`~broadside.lab.servicebus.protocol`: bytes in, bytes out
- :mod:`~broadside.lab.servicebus.dialect`: messages and management requests in AMQP
- :mod:`~broadside.lab.servicebus.queues`: behaviour of a queue
- :mod:`~broadside.lab.servicebus.access_tokens`: authorization
- :mod:`~broadside.lab.servicebus.amqp`: the codec
"""
