"""Storage backend for agents on any host, over HTTPS to the coordinator.

It provides the queue, the tables and the raw output.
"""
