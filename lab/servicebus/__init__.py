"""A Service Bus dialect of AMQP 1.0: queues that the official SDK takes for the real service.

Layers, each ignorant of the one below it: :mod:`~broadside.lab.servicebus.listener` (sockets,
timers, disk), :mod:`~broadside.lab.servicebus.protocol` (bytes in, bytes out),
:mod:`~broadside.lab.servicebus.dialect` (messages and
management requests in AMQP's words), :mod:`~broadside.lab.servicebus.queues` (what a queue does),
:mod:`~broadside.lab.servicebus.access_tokens` (who may) and :mod:`~broadside.lab.servicebus.amqp`
(the codec)."""
