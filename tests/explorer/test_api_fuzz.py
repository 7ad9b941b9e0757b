"""Random requests of schemathesis from the schema with all ids: none gives a 500."""

import pytest
from hypothesis import HealthCheck, settings

from torchcaps.explorer.server import make_app
from torchcaps.explorer.shelf import Shelf

schemathesis = pytest.importorskip("schemathesis")
schema = schemathesis.openapi.from_dict(make_app(Shelf([])).openapi())


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_causes_a_server_error(case, served):
    answer = case.call(base_url=f"http://{served}", headers={"X-Torchcaps": "1"}, timeout=60)
    assert answer.status_code < 500 or answer.status_code == 503
