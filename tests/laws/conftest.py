"""The same random cases in every run: a law that fails here fails everywhere.

``HYPOTHESIS_PROFILE=thorough`` looks further, with new cases each time.
"""

import os

from hypothesis import HealthCheck, settings

slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile(
    "laws", max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=slow
)
settings.register_profile("thorough", max_examples=1000, deadline=None, database=None, suppress_health_check=slow)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "laws"))
