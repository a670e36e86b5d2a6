"""The application of `test_time_that_waits`: windows of an hour behind a repartition
topic.
"""

import os

from tests.broker.test_time_behind_topics import hours

topology = hours(
    os.environ["TEST_APPLICATION"], os.environ["TEST_INPUT"], os.environ["TEST_OUTPUT"]
)
