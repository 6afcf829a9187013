"""What holds for every test."""

from hypothesis import HealthCheck, settings

# A test never asserts an absolute time: on shared cores a slow example says nothing of the code.
settings.register_profile(
    "shared-cores", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-cores")
