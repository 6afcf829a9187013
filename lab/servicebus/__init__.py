"""A Service Bus dialect of AMQP 1.0: queues that the official SDK takes for the real service.

Layers, each ignorant of the one below it: :mod:`~lab.servicebus.listener` (sockets, timers, disk),
:mod:`~lab.servicebus.protocol` (bytes in, bytes out), :mod:`~lab.servicebus.dialect` (messages and
management requests in AMQP's words), :mod:`~lab.servicebus.queues` (what a queue does),
:mod:`~lab.servicebus.access_tokens` (who may) and :mod:`~lab.servicebus.amqp` (the codec).
"""
